//! Numbers so close to zero that processors compute with them a hundred times slower.

use std::arch::asm;

/// Has this thread, and every thread that it starts from now on, take denormal numbers (below 1.2e-38 in 32 bits) as zero and round
/// results that would be denormal to zero, as `torch.set_flush_denormal` does. A gradient that explodes leaves many of them behind.
///
/// For a program to call before it computes: a result must not depend on the thread that it comes from.
pub fn flush_denormals() {
    // The compiler assumes the default mode where it computes constants itself. That can only matter to a result that is denormal, and
    // then matters to every run of this program alike.
    #[cfg(target_arch = "x86_64")]
    {
        const FLUSH_TO_ZERO: u32 = 1 << 15;
        const DENORMALS_ARE_ZERO: u32 = 1 << 6;
        let mut control = 0u32;
        // SAFETY: the register is stored to, and loaded from, a number that lives here; exceptions stay masked.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &mut control, options(nostack, preserves_flags));
            control |= FLUSH_TO_ZERO | DENORMALS_ARE_ZERO;
            asm!("ldmxcsr [{}]", in(reg) &control, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        const FLUSH_TO_ZERO: u64 = 1 << 24;
        let mut control: u64;
        // SAFETY: the register is read and written back with one bit set.
        unsafe {
            asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags));
            asm!("msr fpcr, {}", in(reg) control | FLUSH_TO_ZERO, options(nomem, nostack, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    /// The smallest normal number, halved: zero where denormal numbers are flushed.
    fn half() -> f32 {
        black_box(f32::MIN_POSITIVE) * black_box(0.5)
    }

    #[test]
    fn denormals_are_zero_in_every_thread_that_computes() {
        assert!(half() > 0.0);
        flush_denormals();
        assert_eq!((half(), half() + black_box(1e-40)), (0.0, 0.0));
        assert_eq!(std::thread::spawn(half).join().unwrap(), 0.0);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        assert_eq!(pool.broadcast(|_| half()), [0.0; 3]);
    }
}

//! Where every random number of a run comes from: a stream for each (seed, name).
//!
//! Swapping one part of a model moves no number of another part, because no two names share a stream: weights are
//! drawn from `init/<tensor>`, batches from `batch/<step>`, dropout from `dropout/<step>`.

pub use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// The random stream of `name` under `seed`: ChaCha8 keyed by SHA-256 of both, the same on every machine.
pub fn stream(seed: u64, name: &str) -> ChaCha8Rng {
    let key = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(name.as_bytes()).finalize();
    ChaCha8Rng::from_seed(key.into())
}

/// A uniform whole number below `n`, by rejection: exact, and the same for ever.
pub fn below(rng: &mut ChaCha8Rng, n: u64) -> u64 {
    let limit = u64::MAX - u64::MAX % n;
    loop {
        let draw = rng.next_u64();
        if draw < limit {
            return draw % n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_fixed_for_ever() {
        // SHA-256 and ChaCha8 are standards: these numbers must survive every upgrade.
        let mut stream = stream(0, "init/a");
        assert_eq!([stream.next_u64(), stream.next_u64()], [15196730446655713189, 2267338458604291656]);
        assert_eq!([below(&mut stream, 10), below(&mut stream, 1_000_003)], [2, 683_667]);
    }

    #[test]
    fn names_and_seeds_do_not_share_a_stream() {
        let first = |seed, name| stream(seed, name).next_u64();
        assert_ne!(first(0, "a"), first(0, "b"));
        assert_ne!(first(0, "a"), first(1, "a"));
        assert_eq!(first(7, "a"), first(7, "a"));
    }
}

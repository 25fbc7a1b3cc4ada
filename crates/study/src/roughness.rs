//! How rough an early loss curve is.

/// Steps in a window.
const WINDOW: usize = 11;

/// Weights that give the middle of a parabola fitted to 11 points, times 429. Savitzky and Golay, 1964.
const MIDDLE: [f64; WINDOW] = [-36.0, 9.0, 44.0, 69.0, 84.0, 89.0, 84.0, 69.0, 44.0, 9.0, -36.0];

/// Residual deviation of the training loss around a local quadratic over 11 steps, on the first 10% of steps.
///
/// A quadratic follows the curve's own bend, which a straight line would count as roughness. Scaled so that independent
/// noise around a smooth curve gives its standard deviation. `losses` are those of a run of `steps` steps as far as it has
/// come; `None` before it has come that far, and where 10% of the steps are fewer than a window.
pub(crate) fn roughness(losses: &[f64], steps: usize) -> Option<f64> {
    let early = losses.get(..steps / 10)?;
    let squares: Vec<f64> = early
        .windows(WINDOW)
        .map(|window| {
            let fitted: f64 = window.iter().zip(MIDDLE).map(|(loss, weight)| loss * weight / 429.0).sum();
            (window[WINDOW / 2] - fitted).powi(2)
        })
        .collect();
    // The fit takes up 89/429 of the variance of independent noise.
    let kept = 1.0 - MIDDLE[WINDOW / 2] / 429.0;
    (!squares.is_empty()).then(|| (squares.iter().sum::<f64>() / squares.len() as f64 / kept).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parabola_is_smooth() {
        let losses: Vec<f64> = (0..400).map(|x| 4.0 - 0.05 * x as f64 + 0.0003 * (x * x) as f64).collect();
        assert!(roughness(&losses, 400).unwrap() < 1e-12);
    }

    #[test]
    fn noise_gives_its_own_deviation() {
        // A fixed pseudo-random sequence with deviation 0.1: uniform numbers of a linear congruential generator.
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 11) as f64 / (1u64 << 53) as f64 - 0.5) * 0.1 * 12f64.sqrt()
        };
        let losses: Vec<f64> = (0..200_000).map(|x| 3.0 - 1e-6 * x as f64 + noise()).collect();
        assert!((roughness(&losses, 200_000).unwrap() - 0.1).abs() < 0.002);
    }

    #[test]
    fn a_short_run_has_none() {
        assert_eq!(roughness(&[1.0; 109], 109), None);
        assert_eq!(roughness(&[1.0; 110], 110), Some(0.0));
        assert_eq!(roughness(&[1.0; 30], 800), None);
        assert_eq!(roughness(&[1.0; 80], 800), Some(0.0));
    }
}

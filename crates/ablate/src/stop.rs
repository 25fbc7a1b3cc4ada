//! Requests to stop: signals, and Ctrl-C under a dashboard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use anyhow::Result;
use ratatui::crossterm::terminal::is_raw_mode_enabled;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// Whether our screen owns the terminal.
pub static SCREEN: AtomicBool = AtomicBool::new(false);

/// How often this process was asked to stop.
#[derive(Clone, Default)]
pub struct Requests(Arc<AtomicU8>);

impl Requests {
    /// Whether to stop in good order.
    pub fn stop(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Whether to stop at once.
    pub fn stop_at_once(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 1
    }

    /// Asks as a signal does.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// For the process of a study: counts its signals to stop. After a second one it has a second to end its runs and itself; then
/// it is ended, with the terminal given back.
pub fn on_signal() -> Result<Requests> {
    let requests = Requests::default();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
    let counted = requests.clone();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            counted.add();
            if counted.stop_at_once() {
                std::thread::sleep(Duration::from_secs(1));
                if SCREEN.load(Ordering::Relaxed) {
                    ratatui::restore();
                }
                std::process::exit(75);
            }
        }
    });
    Ok(requests)
}

/// For the process of a run: becomes true on a signal to stop; the run then finishes its step and saves its state. The second
/// interrupt or termination ends it at once. `USR1`, by which its study asks, can come as often as it likes: an interrupt from
/// the terminal reaches both.
pub fn of_worker(dashboard: bool) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let again = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal must not see what it sets itself.
        signal_hook::flag::register_conditional_shutdown(signal, 75, again.clone())?;
        signal_hook::flag::register(signal, again.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    signal_hook::flag::register(SIGUSR1, stop.clone())?;
    if dashboard {
        std::thread::spawn(keep_interrupts);
    }
    Ok(stop)
}

/// burn's dashboard takes Ctrl-C as a key that means nothing. Once it has set the terminal up, this makes it a signal again.
fn keep_interrupts() {
    while !is_raw_mode_enabled().unwrap_or(true) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    if let Ok(mut modes) = tcgetattr(std::io::stdin()) {
        modes.local_modes |= LocalModes::ISIG;
        // Without it Ctrl-C does nothing, and `q` still stops.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &modes);
    }
}

//! Requests to stop: signals, and Ctrl-C under a dashboard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use ratatui::crossterm::terminal::is_raw_mode_enabled;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Whether our screen owns the terminal.
pub static SCREEN: AtomicBool = AtomicBool::new(false);

/// For the process of a study: becomes true on the first interrupt or termination signal. A second one ends the process at
/// once, with the terminal given back; its runs end with it.
pub fn on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let flag = stop.clone();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if flag.swap(true, Ordering::Relaxed) {
                if SCREEN.load(Ordering::Relaxed) {
                    ratatui::restore();
                }
                std::process::exit(75);
            }
        }
    });
    Ok(stop)
}

/// For the process of a run: becomes true on an interrupt or a termination signal, however often it comes; the run then
/// ends in good order after its step.
pub fn of_worker(dashboard: bool) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    // A run whose study was killed must not train on unseen.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
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

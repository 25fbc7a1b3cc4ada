//! Requests to stop: signals, and Ctrl-C under a dashboard.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::crossterm::terminal::is_raw_mode_enabled;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;

/// Whether our screen owns the terminal.
pub static SCREEN: AtomicBool = AtomicBool::new(false);

/// Requests that come this soon after the first are the same one: `timeout` signals a process and then its group.
const ECHO: Duration = Duration::from_secs(1);

/// How often this process was asked to stop.
#[derive(Clone, Default)]
pub struct Requests(Arc<Mutex<Asked>>);

#[derive(Default)]
struct Asked {
    first: Option<Instant>,
    again: bool,
}

impl Requests {
    /// Whether to stop in good order.
    pub fn stop(&self) -> bool {
        self.asked().first.is_some()
    }

    /// Whether to stop at once.
    pub fn stop_at_once(&self) -> bool {
        self.asked().again
    }

    /// Asks as a signal does.
    pub fn add(&self) {
        let mut asked = self.asked();
        let first = *asked.first.get_or_insert_with(Instant::now);
        asked.again |= first.elapsed() > ECHO;
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().expect("no panic while it is held")
    }
}

/// Has a write beyond the limit on the size of files fail as any write does, instead of ending this process.
pub fn fail_on_large_files() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
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

/// For the process of a run: becomes true on a signal to stop; the run then finishes its step and saves its state. A second
/// interrupt or termination, later than [`ECHO`], ends it at once. `USR1`, by which its study asks, can come as often as it likes: an
/// interrupt from the terminal reaches both.
pub fn of_worker(dashboard: bool) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
    let asked = stop.clone();
    std::thread::spawn(move || {
        let requests = Requests::default();
        for signal in signals.forever() {
            asked.store(true, Ordering::Relaxed);
            if signal != SIGUSR1 {
                requests.add();
            }
            if requests.stop_at_once() {
                signal_hook::low_level::exit(75);
            }
        }
    });
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

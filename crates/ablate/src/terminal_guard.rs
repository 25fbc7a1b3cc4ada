//! The terminal while the dashboard of a run has it.

use std::io::{stdin, stdout};

use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::DisableMouseCapture;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::LeaveAlternateScreen;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// How the terminal was before.
pub struct TerminalGuard {
    modes: Option<Termios>,
}

impl TerminalGuard {
    pub fn new() -> Self {
        TerminalGuard { modes: tcgetattr(stdin()).ok() }
    }

    /// Takes the terminal back from a process that has died without giving it back.
    pub fn take_back(&self) {
        // There is nowhere to complain if the terminal has gone.
        let _ = execute!(stdout(), DisableMouseCapture, LeaveAlternateScreen, Show);
        if let Some(modes) = &self.modes {
            let _ = tcsetattr(stdin(), OptionalActions::Now, modes);
        }
    }
}

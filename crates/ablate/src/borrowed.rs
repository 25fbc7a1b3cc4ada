//! The terminal while the dashboard of a run has it.

/// How the terminal was before.
pub struct Borrowed {
    #[cfg(unix)]
    modes: Option<rustix::termios::Termios>,
}

impl Borrowed {
    pub fn new() -> Self {
        Borrowed {
            #[cfg(unix)]
            modes: rustix::termios::tcgetattr(std::io::stdin()).ok(),
        }
    }

    /// Takes the terminal back from a process that has died without giving it back.
    pub fn take_back(&self) {
        use ratatui::crossterm::cursor::Show;
        use ratatui::crossterm::event::DisableMouseCapture;
        use ratatui::crossterm::terminal::LeaveAlternateScreen;
        // There is nowhere to complain if the terminal has gone.
        let _ = ratatui::crossterm::execute!(std::io::stdout(), DisableMouseCapture, LeaveAlternateScreen, Show);
        #[cfg(unix)]
        if let Some(modes) = &self.modes {
            let _ = rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, modes);
        }
    }
}

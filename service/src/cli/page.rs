//! Long text on a terminal, a screenful at a time.
//!
//! No program is started for it: what an operator reads before a decision should not pass through whatever a
//! `PAGER` names.

use std::io::{self, IsTerminal};

use serde_json::Value;

use super::{
    ask::Terminal,
    screens::{screens, size},
    terminal::Out,
    trouble::Trouble,
};

/// Prints a result like [`Out::result`]; on a terminal in pages.
pub(super) fn result(out: Out, value: &Value, human: impl FnOnce(&Value) -> String) -> Result<(), Trouble> {
    if out.json || !io::stdout().is_terminal() {
        return out.result(value, human);
    }
    let text = human(value);
    let text = text.trim_end();
    match Terminal::open() {
        Some(mut terminal) if screens(text, size()).len() > 1 => {
            let shown = terminal.turn(&format!("{text}\n"), None);
            shown.map(drop).map_err(|source| Trouble::Local { attempted: "asking on", path: "/dev/tty".into(), source })
        }
        Some(_) | None => out.text(text),
    }
}

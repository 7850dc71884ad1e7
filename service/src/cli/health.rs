//! `salaam health`

use salaam_core::{check::Status, show};
use serde_json::Value;

use super::terminal::{at, columns, word};

/// Health for a person. It reads what is there: a service of another version may say more or less.
pub(super) fn render(health: &Value) -> String {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let of = |pointer: &str| at(health, pointer);
    let mut rows = vec![
        row("status", of("/status")),
        row("version", of("/version")),
        row("service", format!("pid {}, uid {}, since {}", of("/service_pid"), of("/service_uid"), of("/started"))),
        row(
            "runs commands as",
            format!(
                "{} (uid {}), {}",
                of("/tool_execution/tools_user"),
                of("/tool_execution/tool_uid"),
                of("/tool_execution/mode")
            ),
        ),
        row("isolation", of("/tool_execution/isolation")),
        row("sandbox", sandbox(health.pointer("/tool_execution/sandbox"))),
        row("control group", group(health.pointer("/tool_execution/control_group"))),
        row("network", of("/tool_execution/network")),
        row("unsandboxed", of("/tool_execution/unsandboxed_commands")),
    ];
    for executor in list(health, "/tool_execution/executors") {
        let part = |name| word(executor.get(name));
        rows.push(row("executor", format!("uid {}, epoch {}, pid {}", part("uid"), part("epoch"), part("pid"))));
    }
    rows.extend([
        row("manifest", format!("{} (floor: {})", of("/manifest"), of("/floor"))),
        row("journal", format!("{} events, head {}", of("/journal/last_seq"), of("/journal/last_hash"))),
        row("approvals", format!("{} pending", of("/approvals/pending"))),
        row("sessions", format!("{} active", of("/sessions/active"))),
        row("provider", format!("{} (live: {})", of("/provider/routes"), of("/provider/live"))),
    ]);
    let probes = list(health, "/tool_execution/probes");
    let passed = |probe: &&Value| word(probe.get("result")) == Status::Pass.as_str();
    rows.push(row("probes", format!("{} of {} pass", probes.iter().filter(passed).count(), probes.len())));
    let mut text = columns(&rows);
    for probe in probes.iter().filter(|probe| !passed(probe)) {
        text += &format!("  {}: {}: {}\n", at(probe, "/result"), at(probe, "/id"), at(probe, "/evidence"));
        if let Some(fix) = probe.get("fix").and_then(Value::as_str).filter(|fix| !fix.is_empty()) {
            text += &format!("    fix: {}\n", show::line(fix.as_bytes()));
        }
    }
    for warning in list(health, "/warnings") {
        text += &format!("warning: {}\n", word(Some(warning)));
    }
    text
}

fn list<'a>(health: &'a Value, pointer: &str) -> &'a [Value] {
    health.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn sandbox(sandbox: Option<&Value>) -> String {
    match sandbox {
        None | Some(Value::Null) => "none".into(),
        Some(sandbox) => {
            let part = |name| word(sandbox.get(name));
            format!(
                "{} {}, landlock ABI {}, seccomp {}",
                part("backend"),
                part("version"),
                part("landlock_abi"),
                part("seccomp")
            )
        }
    }
}

fn group(group: Option<&Value>) -> String {
    let part = |name| word(group.and_then(|group| group.get(name)));
    match group.and_then(|group| group.get("held")).and_then(Value::as_bool) {
        Some(true) => format!("{} ({})", part("name"), part("controllers")),
        Some(false) | None => "none".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_not_pass_is_shown_with_its_fix() {
        let health = json!({
            "status": "degraded", "version": "0.1.0", "service_pid": 12,
            "tool_execution": {"mode": "tools-user", "tool_uid": 997, "sandbox": null, "probes": [
                {"id": "state-readable", "result": "pass", "evidence": "EACCES"},
                {"id": "sandbox-userns", "result": "fail", "evidence": "EPERM\u{1b}[2J", "fix": "sysctl …"}]},
            "warnings": ["no tools user"],
        });
        let text = render(&health);
        for part in [
            "degraded",
            "uid 997",
            "1 of 2 pass",
            "fail: sandbox-userns: EPERM\\e[2J",
            "fix: sysctl …",
            "warning: no tools user",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_health_of_another_version_is_still_shown() {
        assert!(render(&json!({"status": "ok"})).starts_with("status"));
        assert!(render(&json!("odd")).starts_with("status"));
    }
}

//! `salaam host …`

use salaam_core::manifest::Manifest;
use serde_json::{Value, json};

use super::{
    args::{self, HostVerb},
    discover::{misconfigured, own_place},
    terminal::{Out, at, columns, fields, word},
    trouble::Trouble,
};
use crate::host::{
    self, Flags,
    setup::{self, Options, SetupError},
};

/// Carries out one verb.
pub(super) fn run(verb: HostVerb, instance: Option<&str>, out: Out) -> Result<(), Trouble> {
    match verb {
        HostVerb::Plan { pin } => {
            // Another account's plan is that account's to make.
            own_place(instance)?;
            out.result(&plan(pin).map_err(misconfigured)?, render)
        }
        HostVerb::Setup(setup) => set_up(setup, out),
        HostVerb::FitWorkspace(fit) => {
            let done = setup::fit_as(&fit.service_user, &fit.group, &fit.dir, !fit.count).map_err(stopped)?;
            out.object(&json!(done))
        }
    }
}

fn set_up(given: args::Setup, out: Out) -> Result<(), Trouble> {
    let options = Options {
        service_user: given.service_user,
        tools_user: given.tools_user,
        group: given.group,
        workspaces: given.workspace,
        operators_group: given.operators_group,
        operators: given.operator,
        dry_run: given.dry_run,
        undo: given.undo,
        yes: given.yes,
    };
    let libexec = host::libexec().map_err(misconfigured)?;
    if !out.json {
        return setup::run(&options, libexec, &mut std::io::stdout()).map_err(stopped);
    }
    let mut lines = Vec::new();
    setup::run(&options, libexec, &mut lines).map_err(stopped)?;
    let commands: Vec<_> = String::from_utf8_lossy(&lines).lines().map(str::to_owned).collect();
    out.object(&json!({ "service_user": options.service_user, "dry_run": options.dry_run, "commands": commands }))
}

/// What root is told when a set-up stops: the exit code is 2 for what was asked, 1 for what the host did.
fn stopped(error: SetupError) -> Trouble {
    Trouble::refused(error.id(), error.to_string(), "")
}

fn plan(pin: bool) -> Result<Value, host::HostError> {
    let host = host::load(Flags::default())?;
    let resolved: Manifest = host.plan()?;
    let mut report = host.plan_report(&resolved, host.pinned()?.as_ref())?;
    if pin {
        host.pin(&resolved)?;
        if let Some(map) = report.as_object_mut() {
            map.insert("pinned".into(), json!(resolved.digest()?));
        }
    }
    Ok(report)
}

fn render(report: &Value) -> String {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let mut text = columns(&[
        row("manifest", at(report, "/manifest")),
        row("pinned", at(report, "/pinned")),
        row("floor", at(report, "/floor")),
    ]);
    text += &fields(report.get("plan").unwrap_or(&Value::Null));
    let list = |name: &str| report.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for change in list("difference") {
        text += &format!("changed: {}: {} -> {}\n", at(change, "/key"), at(change, "/before"), at(change, "/after"));
    }
    for warning in list("warnings") {
        text += &format!("warning: {}\n", word(Some(warning)));
    }
    text
}

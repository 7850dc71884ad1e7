//! From the arguments to one verb and one exit code.

use std::{env, ffi::OsStr, process::ExitCode};

use clap::Parser;

use super::{
    approval,
    args::{Arguments, Run, ServiceVerb, Verb},
    client::{Client, block_on},
    discover, doctor, exit, health, host, journal, operation, run, service, session, start,
    terminal::Out,
    trouble::Trouble,
    workspace,
};

/// Parses the arguments and carries out the verb.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(why) => return ExitCode::from(unparsed(&why)),
    };
    let out = Out { json: arguments.json };
    let instance = arguments.instance.as_deref();
    match arguments.verb {
        // These three have exit codes of their own.
        Verb::Run(run) => ExitCode::from(ran(run, instance, out)),
        Verb::Doctor(given) => {
            doctor::run(given, instance, out).map_or_else(|trouble| failed(&trouble, out), ExitCode::from)
        }
        Verb::Service(ServiceVerb::Start(start)) if start.foreground => {
            start::foreground(start, instance, out).unwrap_or_else(|trouble| failed(&trouble, out))
        }
        verb => carry_out(verb, instance, out).map_or_else(|trouble| failed(&trouble, out), |()| ExitCode::SUCCESS),
    }
}

fn failed(trouble: &Trouble, out: Out) -> ExitCode {
    out.complain(trouble);
    ExitCode::from(trouble.exit())
}

fn ran(run: Run, instance: Option<&str>, out: Out) -> u8 {
    let code = discover::place(instance).and_then(|place| {
        let client = Client::new(place);
        let stdin = run::standard_input(&run)?;
        block_on(async { Ok(run::run(run, stdin, &client, out).await) })
    });
    code.unwrap_or_else(|trouble| {
        out.complain_with_id(&trouble);
        exit::RUN_SALAAM
    })
}

fn carry_out(verb: Verb, instance: Option<&str>, out: Out) -> Result<(), Trouble> {
    let client = || discover::place(instance).map(Client::new);
    match verb {
        Verb::Service(verb) => service::run(verb, instance, out),
        Verb::Host(verb) => host::run(verb, instance, out),
        Verb::Health => {
            let client = client()?;
            block_on(async { out.result(&client.fetch("/v1/health").await?, health::render) })
        }
        Verb::Workspace(verb) => block_on(workspace::run(verb, &client()?, out)),
        Verb::Approval(verb) => block_on(approval::run(verb, &client()?, out)),
        Verb::Approvals => block_on(approval::list(&client()?, out, false)),
        Verb::Operation(verb) => block_on(operation::run(verb, &client()?, out)),
        Verb::Session(verb) => block_on(session::run(verb, &client()?, out)),
        Verb::Journal(verb) => block_on(journal::run(verb, discover::place(instance)?, out)),
        // Carried out above.
        Verb::Run(_) | Verb::Doctor(_) => Ok(()),
    }
}

/// Help and version are answers; anything else is a wrong command line.
fn unparsed(why: &clap::Error) -> u8 {
    if !why.use_stderr() {
        // Nobody to tell if nobody reads.
        let _ = why.print();
        return exit::OK;
    }
    let words: Vec<_> = env::args_os().skip(1).collect();
    let ours = || words.iter().take_while(|word| *word != OsStr::new("--"));
    if ours().any(|word| word == OsStr::new("--json")) {
        let text = why.to_string();
        Out { json: true }.complain(&Trouble::usage(text.trim_end(), "salaam --help"));
    } else {
        let _ = why.print();
    }
    let is_run = ours().find(|word| !word.as_encoded_bytes().starts_with(b"-")).is_some_and(|verb| verb == "run");
    if is_run { exit::RUN_SALAAM } else { exit::USAGE }
}

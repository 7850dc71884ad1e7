//! The service's side, in a process of the service account.

use std::{env, io::BufRead as _, path::PathBuf};

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use salaam_core::{
    bridge::{Action, Attempt},
    id::WorkspaceId,
    policy::Mode,
};
use salaam_service::executor::{Executor, Link, Notice, Spawn};
use tokio::sync::mpsc;

/// Does nothing unless a parent asked for it: the test runner starts it as a test of its own.
pub(crate) fn main() {
    let Ok(toolsd) = env::var("DRIVER_TOOLSD") else { return };
    let uid = |name: &str| env::var(name).unwrap().parse::<u32>().unwrap();
    let mode = env::var("DRIVER_MODE").map_or(Mode::ToolsUser, |mode| mode.parse().unwrap());
    let own = nix::unistd::getuid().as_raw();
    let spawn = Spawn {
        mode,
        tools_user: env::var("DRIVER_TOOLS_USER").unwrap(),
        tools_uid: if mode == Mode::ToolsUser { uid("DRIVER_TOOLS_UID") } else { own },
        service_uid: own,
        toolsd: PathBuf::from(toolsd),
        sudo: env::var_os("DRIVER_SUDO").map_or_else(|| PathBuf::from("/usr/bin/sudo"), PathBuf::from),
        build: "test".into(),
        group: None,
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(drive(spawn));
}

async fn drive(spawn: Spawn) {
    let (notices, mut noticed) = mpsc::channel(16);
    let executor = match Executor::start(spawn, 1, notices).await {
        Ok(executor) => executor,
        Err(checks) => {
            for check in checks {
                println!("@refused {} {} | {}", check.id, check.evidence, check.fix);
            }
            println!("@alive children={}", children());
            return;
        }
    };
    let link = executor.link().unwrap();
    let hello = link.hello();
    let groups = hello.groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    println!(
        "@started {} {} {} {} {} {groups}",
        link.epoch(),
        link.pid(),
        link.sudo_pid().unwrap_or(0),
        hello.uid,
        hello.floor
    );
    tokio::spawn(async move {
        while let Some(notice) = noticed.recv().await {
            match notice {
                Notice::Started { epoch, .. } => println!("@notice started {epoch}"),
                Notice::Lost { epoch, reason, .. } => println!("@notice lost {epoch} {reason}"),
                Notice::ControlFailed { id, evidence } => println!("@notice control-failed {id} {evidence}"),
            }
        }
    });
    let (orders, mut ordered) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if orders.blocking_send(line.unwrap()).is_err() {
                break;
            }
        }
    });
    while let Some(order) = ordered.recv().await {
        match order.as_str() {
            "try" => attempt(&link).await,
            "pend" => pend(executor.link().unwrap()),
            "link" => match executor.link() {
                Ok(link) => println!("@link up {} {} {}", link.epoch(), link.pid(), link.sudo_pid().unwrap_or(0)),
                Err(salaam_service::executor::BridgeError::Lost { reason }) => println!("@link down {reason}"),
                Err(error) => println!("@link down {error}"),
            },
            "stop" => {
                executor.stop().await;
                // Whoever asks once more is answered too.
                executor.stop().await;
                println!("@stopped children={}", children());
                return;
            }
            other => panic!("{other}"),
        }
    }
}

async fn attempt(link: &Link) {
    let one = |id: &str, path: &str| Attempt { id: id.into(), action: Action::Read, path: path.into() };
    let attempts = vec![one("null", "/dev/null"), one("shadow", "/etc/shadow"), one("nowhere", "/nowhere")];
    let tried = link.attempt(attempts).await.unwrap();
    let tried: Vec<_> = tried.iter().map(|tried| format!("{}={}", tried.id, tried.errno)).collect();
    println!("@tried {}", tried.join(" "));
}

fn pend(link: Link) {
    tokio::spawn(async move {
        let call = link.close_workspace(WorkspaceId::new(1, [1; 10]));
        println!("@pending");
        println!("@pended {:?}", call.await.map_err(|error| error.to_string()));
    });
}

/// Children that are left, zombies included.
fn children() -> usize {
    match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) {
        Err(nix::errno::Errno::ECHILD) => 0,
        Ok(_) | Err(_) => 1,
    }
}

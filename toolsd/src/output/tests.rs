//! A stream read to its end by every way that it can go: whole, cut, and with nobody to hear it.

use salaam_core::digest::Digest;

use super::*;

fn pipe_pair() -> (OwnedFd, OwnedFd) {
    nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK).unwrap()
}

/// What is told of a stream of `bytes`, of which `cap` are kept.
async fn told(bytes: Vec<u8>, wanted: Wanted) -> Vec<RunEvent> {
    let (from, to) = pipe_pair();
    enlarge(&from);
    let (events, mut heard) = mpsc::channel(4);
    let (_gone, gone) = watch::channel(false);
    let writing = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        pipe::Sender::from_owned_fd(to).unwrap().write_all(&bytes).await.unwrap();
    });
    let reading = tokio::spawn(forward(from, Way { stream: Stream::Stdout, wanted, events }, gone));
    let mut all = Vec::new();
    while let Some(event) = heard.recv().await {
        all.push(event);
    }
    writing.await.unwrap();
    reading.await.unwrap().unwrap();
    all
}

fn sent(events: &[RunEvent]) -> Vec<u8> {
    let outputs = events.iter().filter_map(|event| match event {
        RunEvent::Output(_, bytes) => Some(bytes.as_slice()),
        RunEvent::Beyond(_) | RunEvent::Spawned(_) | RunEvent::Failed(_) | RunEvent::Exited(_) => None,
    });
    outputs.collect::<Vec<_>>().concat()
}

fn beyond(events: &[RunEvent]) -> Vec<Beyond> {
    let found = events.iter().filter_map(|event| match event {
        RunEvent::Beyond(beyond) => Some(*beyond),
        RunEvent::Output(..) | RunEvent::Spawned(_) | RunEvent::Failed(_) | RunEvent::Exited(_) => None,
    });
    found.collect()
}

fn varied(length: usize) -> Vec<u8> {
    (0..length).map(|number| (number.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}

#[tokio::test]
async fn what_was_written_before_the_end_arrives_although_the_reactor_has_not_seen_it() {
    let (from, to) = pipe_pair();
    // Somebody else still holds the writing end: there is no end of file.
    nix::unistd::write(&to, b"last words").unwrap();
    // On a runtime of one thread that has not polled since, the reactor knows nothing of these bytes.
    let pipe = pipe::Receiver::from_owned_fd(from.try_clone().unwrap()).unwrap();
    let mut bytes = [0; 64];
    assert_eq!(pipe.try_read(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock, "this is what loses them");
    assert_eq!(read_now(&pipe, &mut bytes), b"last words".len());
    drop(pipe);

    nix::unistd::write(&to, b"more").unwrap();
    let (events, mut heard) = mpsc::channel(4);
    let (_gone, gone) = watch::channel(true);
    forward(from, Way { stream: Stream::Stdout, wanted: Wanted::Whole, events }, gone).await.unwrap();
    assert_eq!(heard.recv().await, Some(RunEvent::Output(Stream::Stdout, b"more".to_vec())));
    assert_eq!(heard.recv().await, None);
    drop(to);
}

#[tokio::test]
async fn a_stream_that_is_kept_whole_is_sent_whole_and_nothing_is_told_beside_it() {
    for length in [0, 1, 49_999, 50_000, 99_999, 100_000] {
        let all = varied(length);
        let events = told(all.clone(), Wanted::Kept(Kept::of(100_000))).await;
        assert_eq!((sent(&events), beyond(&events)), (all, Vec::new()), "{length}");
    }
}

#[tokio::test]
async fn of_a_longer_stream_head_and_tail_are_sent_and_the_whole_is_counted_and_hashed() {
    for length in [100_001, 400_000, 20 << 20] {
        let all = varied(length);
        let events = told(all.clone(), Wanted::Kept(Kept::of(100_000))).await;
        let expected = [&all[..50_000], &all[length - 50_000..]].concat();
        assert_eq!(Digest::of(&sent(&events)), Digest::of(&expected), "{length}");
        let told = beyond(&events);
        let whole = Beyond { stream: Stream::Stdout, bytes: length as u64, sha256: Some(Digest::of(&all)) };
        assert_eq!(told.last(), Some(&whole), "{length}");
        assert_eq!(told.len(), if length > 16 << 20 { 2 } else { 1 }, "how far it has come is told now and then");
    }
}

#[tokio::test]
async fn where_somebody_reads_along_all_of_it_is_sent() {
    let all = varied(3 << 20);
    let events = told(all.clone(), Wanted::Whole).await;
    assert_eq!((Digest::of(&sent(&events)), beyond(&events)), (Digest::of(&all), Vec::new()));
}

#[tokio::test]
async fn a_stream_that_is_only_counted_ends_with_its_command_though_another_process_holds_it() {
    let (from, to) = pipe_pair();
    nix::unistd::write(&to, b"head and the rest").unwrap();
    let (events, mut heard) = mpsc::channel(8);
    let (gone_now, gone) = watch::channel(false);
    let wanted = Wanted::Kept(Kept::of(8));
    let reading = tokio::spawn(forward(from, Way { stream: Stream::Stderr, wanted, events }, gone));
    assert_eq!(heard.recv().await, Some(RunEvent::Output(Stream::Stderr, b"head".to_vec())));
    gone_now.send_replace(true);
    reading.await.unwrap().unwrap();
    let whole = Beyond { stream: Stream::Stderr, bytes: 17, sha256: Some(Digest::of(b"head and the rest")) };
    assert_eq!(heard.recv().await, Some(RunEvent::Beyond(whole)));
    assert_eq!(heard.recv().await, Some(RunEvent::Output(Stream::Stderr, b"rest".to_vec())));
    assert_eq!(heard.recv().await, None);
    drop(to);
}

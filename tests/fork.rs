//! Forks (cases 42 and 23). A forked child has one thread, and of all the others only the locks
//! that they held. So a child here calls the pool and next to nothing else, and ends without a way
//! back into the test harness.
#![cfg(target_os = "linux")]

use evenkeel::{
    Error, Load, Picker, Policy, Poll, Pool, PoolConfig, Request, Vetoes, WorkerConfig, WorkerId,
};
use std::io::{PipeWriter, Read, Write, pipe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A child that has not ended by then has hung.
const SECONDS: u32 = 2;

/// Runs in a child, which exits with the status that it returns. Returns the child.
fn fork(run: impl FnOnce() -> i32) -> libc::pid_t {
    /// Ends the process, also when it unwinds.
    struct Exit(i32);
    impl Drop for Exit {
        fn drop(&mut self) {
            // SAFETY: safe in a forked child. No destructor or buffer of the parent is touched.
            unsafe { libc::_exit(self.0) }
        }
    }

    // SAFETY: the child calls what is safe in it: see the head of this file.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut exit = Exit(101);
        // SAFETY: safe in a forked child.
        unsafe { libc::alarm(SECONDS) };
        exit.0 = run();
    }
    child
}

/// How the child ended, in the encoding of `waitpid`: 0 is an exit with 0.
fn wait(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    status
}

/// Lets the other thread of a scope end, also if this one fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const KEPT: u64 = 200;
const COMING_AND_GOING: u64 = 240;

fn load(worker: WorkerId, tokens: u64) -> Load {
    Load { worker, tokens, running: None, waiting: None, timestamp: None }
}

/// All that a router does. What was in flight stays so.
fn use_all(pool: &Pool, picker: &mut Picker, poll: &mut Poll) -> Result<(), Error> {
    let before = pool.totals()?.in_flight;
    for policy in Policy::ALL {
        let request = Request { policy: Some(policy), tokens: 7, ..Request::default() };
        pool.pick(&request)?;
        picker.pick(&request)?;
        for ticket in [pool.dispatch(&request)?, picker.dispatch(&request)?] {
            pool.finish(ticket)?;
        }
    }
    let worker = pool.find(0)?;
    pool.publish(&[load(worker, 1)])?;
    poll.begin()?;
    poll.publish(&[load(worker, 2)])?;
    // Whoever is active is in the view that was just published.
    for key in 0..COMING_AND_GOING {
        match pool.find(key) {
            Ok(worker) => {
                let candidates = Some(&[worker][..]);
                pool.finish(pool.dispatch(&Request { candidates, ..Request::default() })?)?;
            }
            Err(error) => assert!(key >= KEPT && error == Error::UnknownKey { key }),
        }
    }

    let new = pool.add(u64::MAX, WorkerConfig::default())?;
    let only_new = Request { candidates: Some(&[new]), ..Request::default() };
    let mut ticket = pool.dispatch(&only_new)?;
    assert_eq!(ticket.worker(), new);
    pool.grow(&mut ticket, 5)?;
    pool.veto(new, Vetoes::HOST, true)?;
    assert_eq!(pool.pick(&only_new), Err(Error::Empty));
    pool.retarget(&mut ticket, worker)?;
    pool.remove(new)?;
    assert_eq!(pool.find(u64::MAX), Err(Error::UnknownKey { key: u64::MAX }));
    pool.finish(ticket)?;
    assert_eq!(pool.totals()?.in_flight, before);
    Ok(())
}

/// Case 42.
#[test]
fn a_child_forked_in_the_middle_of_changes_goes_on() {
    let capacity = COMING_AND_GOING as u32 + 1;
    let pool = Pool::new(PoolConfig { capacity, ..PoolConfig::default() }).unwrap();
    let add = |key| pool.add(key, WorkerConfig::default()).unwrap();
    let kept: Vec<_> = (0..KEPT).map(add).collect();
    let loads: Vec<_> = kept.iter().map(|&worker| load(worker, 3)).collect();
    let members: Vec<_> = (0..COMING_AND_GOING).map(|key| (key, None)).collect();
    let mut picker = pool.picker(1).unwrap();
    let mut poll = pool.poll(None);

    let change = || {
        assert_eq!(pool.publish(&loads), Ok(0));
        pool.set_members(&members).unwrap();
        // Most of a removal's time its worker is on its way out.
        for key in KEPT..COMING_AND_GOING {
            let worker = pool.find(key).unwrap();
            pool.finish(pool.begin(worker, 3).unwrap()).unwrap();
            pool.remove(worker).unwrap();
            pool.add(key, WorkerConfig::default()).unwrap();
        }
        pool.set_members(&members[..KEPT as usize]).unwrap();
    };
    let done = AtomicBool::new(false);
    let failed = thread::scope(|scope| {
        let _done = SetOnDrop(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                change();
            }
        });
        let fork_once = |_| {
            wait(fork(|| match use_all(&pool, &mut picker, &mut poll) {
                Ok(()) => 0,
                Err(Error::Busy) => 2,
                Err(_) => 1,
            }))
        };
        (0..200).map(fork_once).find(|&status| status != 0)
    });
    assert_eq!(failed, None, "the status of a child as waitpid has it");
    use_all(&pool, &mut picker, &mut poll).unwrap();
}

/// The first choices of every generator that a process can have.
#[derive(Debug, PartialEq, Eq)]
struct Choices([[u8; 32]; 5]);

impl Choices {
    const THREAD: usize = 0;
    const PICKER: usize = 1;
    const NEW_PICKER: usize = 2;
    const SEEDED: usize = 3;
    const NEW_SEEDED: usize = 4;

    fn draw(pool: &Pool, picker: &mut Picker, seeded: &mut Picker) -> Self {
        let request = Request { policy: Some(Policy::Random), ..Request::default() };
        let mut new_picker = pool.picker(0).unwrap();
        let mut new_seeded = pool.picker(5).unwrap();
        let slots = |pick: &mut dyn FnMut() -> Result<WorkerId, Error>| {
            std::array::from_fn(|_| pick().unwrap().slot() as u8)
        };
        let mut drawn = [[0; 32]; 5];
        drawn[Self::THREAD] = slots(&mut || pool.pick(&request));
        drawn[Self::PICKER] = slots(&mut || picker.pick(&request));
        drawn[Self::NEW_PICKER] = slots(&mut || new_picker.pick(&request));
        drawn[Self::SEEDED] = slots(&mut || seeded.pick(&request));
        drawn[Self::NEW_SEEDED] = slots(&mut || new_seeded.pick(&request));
        Self(drawn)
    }

    fn send(&self, mut pipe: &PipeWriter) -> i32 {
        i32::from(pipe.write_all(self.0.as_flattened()).is_err())
    }
}

/// Case 23, with a seed of the pool and without. Of 64 workers, two lists of 32 that are drawn
/// apart are the same with a probability of 2⁻¹⁹².
#[test]
fn children_choose_apart_and_seeded_pickers_repeat() {
    for seed in [0, 9] {
        let config = PoolConfig { capacity: 64, seed, ..PoolConfig::default() };
        let pool = Pool::new(config).unwrap();
        for key in 0..64 {
            pool.add(key, WorkerConfig::default()).unwrap();
        }
        let mut picker = pool.picker(0).unwrap();
        let mut seeded = pool.picker(5).unwrap();
        pool.pick(&Request::default()).unwrap();
        picker.pick(&Request::default()).unwrap();

        let child = |_| {
            let (mut reader, writer) = pipe().unwrap();
            let drawn = || Choices::draw(&pool, &mut picker, &mut seeded).send(&writer);
            assert_eq!(wait(fork(drawn)), 0);
            let mut choices = Choices([[0; 32]; 5]);
            reader.read_exact(choices.0.as_flattened_mut()).unwrap();
            choices
        };
        let [a, b] = [0, 1].map(child);
        let parent = Choices::draw(&pool, &mut picker, &mut seeded);
        for generator in [Choices::THREAD, Choices::PICKER, Choices::NEW_PICKER] {
            let [a, b, parent] = [&a, &b, &parent].map(|choices| choices.0[generator]);
            assert!(a != b && a != parent && b != parent, "generator {generator}, seed {seed}");
        }
        for generator in [Choices::SEEDED, Choices::NEW_SEEDED] {
            assert_eq!(a.0[generator], parent.0[generator]);
            assert_eq!(b.0[generator], parent.0[generator]);
        }
    }
}

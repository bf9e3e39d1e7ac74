//! Reads bytes as calls of the C interface, with structs of any size and content, and with real and
//! forged ids and tickets, and checks what must hold whatever the calls are. The fuzz target and
//! `tests/fuzz.rs` use it.

use std::collections::HashSet;
use std::ffi::{CString, c_char, c_void};
use std::{mem, ptr};

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Ticket {
    worker: u64,
    opaque: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Totals {
    workers: u32,
    draining: u32,
    in_flight: u64,
    finished: u64,
    abandoned: u64,
    saturated: u64,
    anomalies: u64,
    rejected_loads: u64,
    version: u64,
}

/// The beginning of `ek_worker_stats`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Row {
    worker: u64,
    key: u64,
    state: u32,
    vetoes: u32,
    weight: u32,
    max_in_flight: u32,
    in_flight: u32,
    has_load: u32,
    finished: u64,
    tokens: u64,
}

type Object = *mut c_void;
type Struct = *const c_void;

// SAFETY: as include/evenkeel.h has them; what differs are the names of pointed-to types.
unsafe extern "C" {
    fn ek_key(label: *const c_char) -> u64;
    fn ek_worker_slot(worker: u64) -> u32;
    fn ek_policy_parse(name: *const c_char, out: *mut u32) -> i32;
    fn ek_policy_name(policy: u32) -> *const c_char;
    fn ek_status_str(status: i32) -> *const c_char;
    fn ek_error_message(out: *mut c_char, size: usize) -> i32;
    fn ek_pool_config_init_sized(out: *mut c_void, size: usize) -> i32;
    fn ek_tuning_init_sized(out: *mut c_void, size: usize) -> i32;
    fn ek_worker_config_init_sized(out: *mut c_void, size: usize) -> i32;
    fn ek_request_init_sized(out: *mut c_void, size: usize) -> i32;
    fn ek_pool_new(config: Struct, out: *mut Object) -> i32;
    fn ek_pool_free(pool: Object);
    fn ek_pool_ref(pool: Object) -> i32;
    fn ek_pool_tune(pool: Object, tuning: Struct) -> i32;
    fn ek_pool_add(pool: Object, key: u64, config: Struct, out: *mut u64) -> i32;
    fn ek_pool_ensure(pool: Object, key: u64, config: Struct, out: *mut u64) -> i32;
    fn ek_pool_set_members(
        pool: Object,
        keys: *const u64,
        configs: Struct,
        size: usize,
        count: usize,
    ) -> i32;
    fn ek_pool_update(pool: Object, worker: u64, fields: u32, config: Struct) -> i32;
    fn ek_pool_veto(pool: Object, worker: u64, who: u32, on: u32) -> i32;
    fn ek_pool_remove(pool: Object, worker: u64) -> i32;
    fn ek_pool_abandon(pool: Object, worker: u64) -> i32;
    fn ek_pool_find(pool: Object, key: u64, out: *mut u64) -> i32;
    fn ek_pool_publish(
        pool: Object,
        loads: Struct,
        size: usize,
        count: usize,
        out: *mut usize,
    ) -> i32;
    fn ek_poll_new(pool: Object, workers: *const u64, count: usize, out: *mut Object) -> i32;
    fn ek_poll_begin(poll: Object) -> i32;
    fn ek_poll_publish(
        poll: Object,
        loads: Struct,
        size: usize,
        count: usize,
        out: *mut usize,
    ) -> i32;
    fn ek_poll_free(poll: Object);
    fn ek_pool_pick(pool: Object, request: Struct, out: *mut u64) -> i32;
    fn ek_pool_dispatch(pool: Object, request: Struct, out: *mut Ticket) -> i32;
    fn ek_picker_new(pool: Object, seed: u64, out: *mut Object) -> i32;
    fn ek_picker_free(picker: Object);
    fn ek_picker_pick(picker: Object, request: Struct, out: *mut u64) -> i32;
    fn ek_picker_dispatch(picker: Object, request: Struct, out: *mut Ticket) -> i32;
    fn ek_pool_begin(pool: Object, worker: u64, tokens: u64, out: *mut Ticket) -> i32;
    fn ek_pool_finish(pool: Object, ticket: *mut Ticket) -> i32;
    fn ek_pool_finish_worker(pool: Object, worker: u64, tokens: u64) -> i32;
    fn ek_pool_grow(pool: Object, ticket: *mut Ticket, tokens: u64) -> i32;
    fn ek_pool_retarget(pool: Object, ticket: *mut Ticket, worker: u64) -> i32;
    fn ek_ticket_tokens(ticket: *const Ticket) -> u64;
    fn ek_pool_stats(
        pool: Object,
        out: *mut c_void,
        size: usize,
        capacity: usize,
        out_count: *mut usize,
    ) -> i32;
    fn ek_pool_totals_get(pool: Object, out: *mut c_void, size: usize) -> i32;
}

// Links the library in whose functions these are.
use evenkeel as _;

const OK: i32 = 0;
const STALE: i32 = -8;
/// Sizes of structs that the library takes.
const SMALLEST: usize = 8;
const LARGEST: usize = 4096;

/// A call of the interface. Every pointer below is NULL or to what it says: a struct of as many
/// bytes as its size tells the library to read.
macro_rules! call {
    ($call:expr) => {
        // SAFETY: see above.
        unsafe { $call }
    };
}

/// The same, of a function with a status; nothing is ever to panic, to fail in the system or to
/// wait for another thread.
macro_rules! status {
    ($call:expr) => {{
        let status = call!($call);
        assert!((-11..=OK).contains(&status) && status != -10, "{status}: {}", stringify!($call));
        status
    }};
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Small ones, those around the limits, and any.
    fn number(&mut self) -> u64 {
        const LIMITS: [u64; 10] = [
            0,
            1,
            1_048_575,
            1_048_576,
            u32::MAX as u64,
            1 << 32,
            1 << 63,
            u64::MAX / 8,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.below(4) {
            0 => LIMITS[self.below(LIMITS.len())],
            1 => self.word(),
            _ => u64::from(self.byte()),
        }
    }

    fn text(&mut self) -> CString {
        let length = if self.below(8) == 0 { 256 } else { self.below(24) };
        let letters = (0..length).map(|_| self.byte().max(1)).collect::<Vec<_>>();
        CString::new(letters).expect("no NUL in it")
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// Where a struct of the interface ends, and its function for defaults, if it has one.
struct Kind {
    known: usize,
    init: Option<unsafe extern "C" fn(*mut c_void, usize) -> i32>,
}

const POOL_CONFIG: Kind = Kind { known: 40, init: Some(ek_pool_config_init_sized) };
const TUNING: Kind = Kind { known: 32, init: Some(ek_tuning_init_sized) };
const WORKER_CONFIG: Kind = Kind { known: 32, init: Some(ek_worker_config_init_sized) };
const REQUEST: Kind = Kind { known: 64, init: Some(ek_request_init_sized) };
const LOAD: Kind = Kind { known: 32, init: None };

/// A size to pass: mostly the right one, else any.
fn size_of(kind: &Kind, bytes: &mut Bytes) -> usize {
    match bytes.below(8) {
        0 => bytes.number() as usize,
        1 => SMALLEST + bytes.below(kind.known),
        2 => kind.known + bytes.below(64),
        _ => kind.known,
    }
}

/// How much of a struct of this size the library may read: its size, if that is one.
fn room(size: usize) -> usize {
    if (SMALLEST..=LARGEST).contains(&size) { size } else { SMALLEST }
}

/// A struct of this size: defaults, changed at some places, and then `last` at its offset, in no
/// more memory than it takes, so that a checker sees reads beyond.
fn a_struct(kind: &Kind, size: usize, last: &[(usize, u64)], bytes: &mut Bytes) -> Box<[u8]> {
    let mut whole = [0; LARGEST];
    if let Some(init) = kind.init {
        assert_eq!(call!(init(whole.as_mut_ptr().cast(), LARGEST)), OK);
    }
    for _ in 0..bytes.below(4) {
        let beyond = if bytes.chance() { 4 } else { 0 };
        let at = bytes.below(kind.known / 4 + beyond) * 4;
        let value = bytes.number().to_le_bytes();
        let width = if bytes.chance() { 4 } else { 8 };
        whole[at..at + width].copy_from_slice(&value[..width]);
    }
    for &(at, value) in last {
        whole[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    if kind.init.is_some() {
        whole[..8].copy_from_slice(&size.to_le_bytes());
    }
    whole[..room(size)].into()
}

struct Pool {
    handle: Object,
    /// Real ones, that were in flight when they were last seen.
    tickets: Vec<Ticket>,
    begun: u64,
    ended: u64,
    last: Totals,
}

struct World<'a> {
    bytes: Bytes<'a>,
    pools: Vec<Pool>,
    pickers: Vec<(usize, Object)>,
    polls: Vec<Object>,
    ids: Vec<u64>,
}

/// What one input does.
pub fn drive(bytes: &[u8]) {
    let pools = Vec::new();
    let mut world =
        World { bytes: Bytes(bytes), pools, pickers: vec![], polls: vec![], ids: vec![0] };
    world.new_pool(true);
    world.new_pool(false);
    while !world.bytes.0.is_empty() {
        world.step();
    }
    world.end();
}

impl World<'_> {
    fn new_pool(&mut self, defaults: bool) {
        let mut handle = ptr::null_mut();
        if defaults {
            assert_eq!(status!(ek_pool_new(ptr::null(), &mut handle)), OK);
        } else {
            let tuning = self.tuning();
            let pointer = if self.bytes.chance() { tuning.as_ptr() as u64 } else { 0 };
            let size = size_of(&POOL_CONFIG, &mut self.bytes);
            let mut config = a_struct(&POOL_CONFIG, size, &[(32, pointer)], &mut self.bytes);
            // Large ones take their time and teach nothing.
            if config.len() >= 12 && config[10..12] == [0, 0] {
                config[9] = 0;
            }
            let given = status!(ek_pool_new(config.as_ptr().cast(), &mut handle));
            assert_eq!(given == OK, !handle.is_null());
        }
        if !handle.is_null() {
            let last = Totals::default();
            self.pools.push(Pool { handle, tickets: vec![], begun: 0, ended: 0, last });
        }
    }

    fn tuning(&mut self) -> Box<[u8]> {
        let size = size_of(&TUNING, &mut self.bytes);
        a_struct(&TUNING, size, &[], &mut self.bytes)
    }

    /// A real id, a slightly wrong one, or any number.
    fn id(&mut self) -> u64 {
        let real = self.ids[self.bytes.below(self.ids.len())];
        match self.bytes.below(8) {
            0 => real ^ 1 << self.bytes.below(64),
            1 => self.bytes.word(),
            _ => real,
        }
    }

    /// A list, and the count to pass of it: its own, none, all, or more than there can be.
    fn ids(&mut self) -> (Vec<u64>, usize) {
        let list: Vec<_> = (0..self.bytes.below(6)).map(|_| self.id()).collect();
        let count = match self.bytes.below(8) {
            0 => usize::MAX,
            1 => usize::MAX / 8 + self.bytes.below(9),
            2 => 0,
            _ => list.len(),
        };
        (list, count)
    }

    fn pointer_of(&mut self, list: &[u64], count: usize) -> u64 {
        // NULL is refused before the list is read.
        let null = self.bytes.below(8) == 0 || list.is_empty() && count != 0;
        if null { 0 } else { list.as_ptr() as u64 }
    }

    /// Calls with a request, whose lists live as long.
    fn with_request(&mut self, call: impl FnOnce(Struct) -> i32) -> i32 {
        if self.bytes.below(8) == 0 {
            return call(ptr::null());
        }
        let (candidates, count) =
            if self.bytes.chance() { (vec![], usize::MAX) } else { self.ids() };
        let (excluded, excluded_count) = if self.bytes.chance() { (vec![], 0) } else { self.ids() };
        let last = [
            (24, self.pointer_of(&candidates, count)),
            (32, count as u64),
            (40, self.pointer_of(&excluded, excluded_count)),
            (48, excluded_count as u64),
        ];
        let size = size_of(&REQUEST, &mut self.bytes);
        // A list's pointer and its count come and go together, or the count is the default's.
        let request = a_struct(&REQUEST, size, &last, &mut self.bytes);
        call(request.as_ptr().cast())
    }

    fn with_worker_config(&mut self, call: impl FnOnce(Struct) -> i32) -> i32 {
        if self.bytes.chance() {
            return call(ptr::null());
        }
        let label = self.bytes.text();
        let pointer = if self.bytes.chance() { label.as_ptr() as u64 } else { 0 };
        let size = size_of(&WORKER_CONFIG, &mut self.bytes);
        let config = a_struct(&WORKER_CONFIG, size, &[(24, pointer)], &mut self.bytes);
        call(config.as_ptr().cast())
    }

    /// Calls with elements of one size, one after the other.
    fn with_loads(&mut self, call: impl FnOnce(Struct, usize, usize, &mut usize) -> i32) {
        let size = size_of(&LOAD, &mut self.bytes);
        let count = self.bytes.below(5);
        let loads: Vec<u8> = (0..count)
            .flat_map(|_| {
                let id = self.id();
                a_struct(&LOAD, size, &[(0, id)], &mut self.bytes).into_vec()
            })
            .collect();
        let null = self.bytes.below(8) == 0;
        let pointer = if null { ptr::null() } else { loads.as_ptr().cast() };
        let mut rejected = usize::MAX;
        let given = call(pointer, size, count, &mut rejected);
        assert_eq!(given == OK, rejected <= count);
    }

    /// A ticket to misuse: of any pool, changed in one bit or all, or nothing like one.
    fn forged(&mut self) -> Ticket {
        let pool = self.bytes.below(self.pools.len());
        let tickets = &self.pools[pool].tickets;
        let mut ticket = match tickets.len() {
            0 => Ticket::default(),
            length => tickets[self.bytes.below(length)],
        };
        match self.bytes.below(5) {
            0 => ticket.worker ^= 1 << self.bytes.below(64),
            1 => ticket.opaque ^= 1 << self.bytes.below(64),
            2 => ticket = Ticket { worker: self.id(), opaque: self.bytes.number() },
            3 => ticket = Ticket { worker: self.bytes.word(), opaque: self.bytes.word() },
            _ => {}
        }
        ticket
    }

    fn step(&mut self) {
        let what = self.bytes.below(32);
        let at = self.bytes.below(self.pools.len());
        let pool = self.pools[at].handle;
        let key = self.bytes.number();
        match what {
            0..=3 => self.request(at),
            4 | 5 => {
                let mut id = 0;
                let given = self
                    .with_worker_config(|config| status!(ek_pool_add(pool, key, config, &mut id)));
                self.learn(given, id);
            }
            6 => {
                let mut id = 0;
                let given = self.with_worker_config(|config| {
                    status!(ek_pool_ensure(pool, key, config, &mut id))
                });
                self.learn(given, id);
            }
            7 => self.set_members(pool),
            8 => {
                let (id, fields) = (self.id(), self.bytes.below(10) as u32);
                self.with_worker_config(|config| status!(ek_pool_update(pool, id, fields, config)));
            }
            9 => {
                let (id, who) = (self.id(), self.bytes.below(10) as u32);
                status!(ek_pool_veto(pool, id, who, self.bytes.below(3) as u32));
            }
            10 => {
                status!(ek_pool_remove(pool, self.id()));
            }
            11 => {
                status!(ek_pool_abandon(pool, self.id()));
            }
            12 => {
                let mut id = 0;
                let given = status!(ek_pool_find(pool, key, &mut id));
                self.learn(given, id);
            }
            13 => self.with_loads(|loads, size, count, rejected| {
                status!(ek_pool_publish(pool, loads, size, count, rejected))
            }),
            14 => self.poll(pool),
            15 => {
                let mut id = 0;
                let given =
                    self.with_request(|request| status!(ek_pool_pick(pool, request, &mut id)));
                self.learn(given, id);
            }
            16 => {
                let mut picker = ptr::null_mut();
                assert_eq!(status!(ek_picker_new(pool, key, &mut picker)), OK);
                self.pickers.push((at, picker));
                if self.pickers.len() > 4 {
                    call!(ek_picker_free(self.pickers.remove(0).1));
                }
            }
            17..=19 => self.end_one(at),
            20 | 21 => {
                let mut ticket = self.forged();
                if status!(ek_pool_finish(pool, &mut ticket)) == OK {
                    self.pools[at].ended += 1;
                }
            }
            22 => {
                let id = self.id();
                if status!(ek_pool_finish_worker(pool, id, key)) == OK {
                    self.pools[at].ended += 1;
                }
            }
            23 => {
                let mut ticket = self.forged();
                let tokens = call!(ek_ticket_tokens(&ticket));
                if status!(ek_pool_grow(pool, &mut ticket, key)) == OK {
                    assert_eq!(call!(ek_ticket_tokens(&ticket)), tokens + key);
                }
            }
            24 => {
                let (mut ticket, id) = (self.forged(), self.id());
                let before = ticket.worker;
                let given = status!(ek_pool_retarget(pool, &mut ticket, id));
                assert_eq!(ticket.worker, if given == OK { id } else { before });
                // A copy of a real one can't be told from it. This one now ends what it moved.
                if given == OK {
                    self.pools[at].tickets.push(ticket);
                }
            }
            25 => {
                if let Some(mut ticket) = self.pools[at].tickets.pop() {
                    status!(ek_pool_grow(pool, &mut ticket, key));
                    status!(ek_pool_retarget(pool, &mut ticket, self.id()));
                    self.pools[at].tickets.push(ticket);
                }
            }
            26 => {
                let tuning = self.tuning();
                status!(ek_pool_tune(pool, tuning.as_ptr().cast()));
            }
            27 => {
                assert_eq!(status!(ek_pool_ref(pool)), OK);
                call!(ek_pool_free(pool));
            }
            28 => self.words(),
            29 => self.statistics_of_any_size(pool),
            30 => self.nothing(pool),
            _ => self.check(at),
        }
        if self.bytes.below(8) == 0 {
            self.check(at);
        }
    }

    fn learn(&mut self, given: i32, id: u64) {
        assert_eq!(given == OK, id != 0);
        if given == OK && self.ids.len() < 200 {
            self.ids.push(id);
        }
    }

    fn request(&mut self, at: usize) {
        let pool = self.pools[at].handle;
        let mut ticket = Ticket::default();
        let mut of = at;
        let given = match (self.bytes.below(4), self.pickers.last().copied()) {
            (0, _) => {
                let (id, tokens) = (self.id(), self.bytes.number());
                status!(ek_pool_begin(pool, id, tokens, &mut ticket))
            }
            (1, Some((of_picker, picker))) => {
                of = of_picker;
                self.with_request(|request| {
                    status!(ek_picker_dispatch(picker, request, &mut ticket))
                })
            }
            (2, Some((_, picker))) => {
                let mut id = 0;
                let given =
                    self.with_request(|request| status!(ek_picker_pick(picker, request, &mut id)));
                return self.learn(given, id);
            }
            _ => self.with_request(|request| status!(ek_pool_dispatch(pool, request, &mut ticket))),
        };
        assert_eq!(given == OK, ticket.worker != 0);
        if given == OK {
            self.pools[of].begun += 1;
            self.pools[of].tickets.push(ticket);
            if self.ids.len() < 200 {
                self.ids.push(ticket.worker);
            }
        }
    }

    /// A real one, once and once too often.
    fn end_one(&mut self, at: usize) {
        let length = self.pools[at].tickets.len();
        if length == 0 {
            return;
        }
        let chosen = self.bytes.below(length);
        let pool = &mut self.pools[at];
        let mut ticket = pool.tickets.swap_remove(chosen);
        match status!(ek_pool_finish(pool.handle, &mut ticket)) {
            OK => {
                pool.ended += 1;
                assert_eq!((ticket.worker, ticket.opaque), (0, 0));
                assert_eq!(status!(ek_pool_finish(pool.handle, &mut ticket)), STALE);
            }
            given => assert_eq!(given, STALE),
        }
    }

    fn set_members(&mut self, pool: Object) {
        let keys: Vec<u64> = (0..self.bytes.below(6)).map(|_| self.bytes.number()).collect();
        let size = size_of(&WORKER_CONFIG, &mut self.bytes);
        let mut configs = Vec::new();
        for _ in &keys {
            configs.extend(a_struct(&WORKER_CONFIG, size, &[(24, 0)], &mut self.bytes));
        }
        let pointer =
            if self.bytes.chance() { ptr::null() } else { configs.as_ptr().cast::<c_void>() };
        status!(ek_pool_set_members(pool, keys.as_ptr(), pointer, size, keys.len()));
    }

    fn poll(&mut self, pool: Object) {
        let Some(&poll) = self.polls.last().filter(|_| self.bytes.below(4) != 0) else {
            let (list, count) = self.ids();
            let pointer = self.pointer_of(&list, count) as *const u64;
            let mut poll = ptr::null_mut();
            if status!(ek_poll_new(pool, pointer, count, &mut poll)) == OK {
                self.polls.push(poll);
            }
            if self.polls.len() > 4 {
                call!(ek_poll_free(self.polls.remove(0)));
            }
            return;
        };
        if self.bytes.chance() {
            assert_eq!(status!(ek_poll_begin(poll)), OK);
        }
        self.with_loads(|loads, size, count, rejected| {
            status!(ek_poll_publish(poll, loads, size, count, rejected))
        });
    }

    fn words(&mut self) {
        let text = self.bytes.text();
        let number = self.bytes.number();
        let mut policy = 0;
        call!(ek_key(text.as_ptr()));
        assert!(call!(ek_worker_slot(number)) < 65536);
        let parsed = status!(ek_policy_parse(text.as_ptr(), &mut policy)) == OK;
        assert_eq!(parsed, (1..=8).contains(&policy));
        assert!(!call!(ek_status_str(number as i32)).is_null());
        let name = call!(ek_policy_name(number as u32));
        assert_eq!(!name.is_null(), (1..=8).contains(&(number as u32)));
        let mut message: Box<[c_char]> = vec![1; self.bytes.below(64)].into();
        let given = status!(ek_error_message(message.as_mut_ptr(), message.len()));
        assert!(given != OK || message.contains(&0));
    }

    fn statistics_of_any_size(&mut self, pool: Object) {
        let size = if self.bytes.chance() { 392 } else { self.bytes.number() as usize };
        let rows = self.bytes.below(4);
        let mut out: Box<[u8]> = vec![0; room(size) * rows.max(1)].into();
        let mut count = usize::MAX;
        let given = status!(ek_pool_stats(pool, out.as_mut_ptr().cast(), size, rows, &mut count));
        assert_eq!(given == OK, count <= 65535);
        status!(ek_pool_totals_get(pool, out.as_mut_ptr().cast(), room(size)));
    }

    /// NULL where there must be something.
    fn nothing(&mut self, pool: Object) {
        const NULL: i32 = -1;
        let id = self.id();
        assert_eq!(status!(ek_pool_pick(pool, ptr::null(), ptr::null_mut())), NULL);
        assert_eq!(status!(ek_pool_dispatch(pool, ptr::null(), ptr::null_mut())), NULL);
        assert_eq!(status!(ek_pool_begin(pool, id, 1, ptr::null_mut())), NULL);
        assert_eq!(status!(ek_pool_finish(pool, ptr::null_mut())), NULL);
        assert_eq!(status!(ek_pool_finish_worker(ptr::null_mut(), id, 0)), NULL);
        assert_eq!(status!(ek_pool_remove(ptr::null_mut(), id)), NULL);
        assert_eq!(status!(ek_poll_begin(ptr::null_mut())), NULL);
        call!(ek_pool_free(ptr::null_mut()));
        call!(ek_poll_free(ptr::null_mut()));
        call!(ek_picker_free(ptr::null_mut()));
    }

    /// Counts add up, and none is below zero.
    fn check(&mut self, at: usize) {
        let pool = &mut self.pools[at];
        let mut now = Totals::default();
        let size = mem::size_of::<Totals>();
        assert_eq!(status!(ek_pool_totals_get(pool.handle, (&raw mut now).cast(), size)), OK);
        assert_eq!(pool.begun, now.in_flight + now.finished + now.abandoned);
        assert_eq!(now.finished, pool.ended);
        let last = mem::replace(&mut pool.last, now);
        assert!(now.version >= last.version && now.anomalies >= last.anomalies);
        assert!(now.saturated >= last.saturated && now.rejected_loads >= last.rejected_loads);

        let mut rows = vec![Row::default(); (now.workers + now.draining) as usize];
        let mut count = 0;
        let out = rows.as_mut_ptr().cast();
        let size = mem::size_of::<Row>();
        assert_eq!(status!(ek_pool_stats(pool.handle, out, size, rows.len(), &mut count)), OK);
        assert_eq!(count, rows.len());
        assert_eq!(rows.iter().map(|row| u64::from(row.in_flight)).sum::<u64>(), now.in_flight);
        let mut keys = HashSet::new();
        for row in rows {
            assert!(row.in_flight <= 1_048_575 && row.tokens <= u64::from(u32::MAX));
            assert!(row.in_flight > 0 || row.tokens == 0, "{} tokens of none", row.tokens);
            assert!(row.weight <= 1_000_000 && row.vetoes < 8);
            assert!(row.state == 1 && keys.insert(row.key) || row.state == 2 && row.in_flight > 0);
        }
    }

    /// All that is held ends, whatever was done to it.
    fn end(mut self) {
        for at in 0..self.pools.len() {
            while !self.pools[at].tickets.is_empty() {
                self.end_one(at);
            }
            self.check(at);
            assert_eq!(self.pools[at].last.in_flight, 0);
        }
        // What holds a pool may go after it.
        for pool in &self.pools {
            call!(ek_pool_free(pool.handle));
        }
        for poll in self.polls {
            assert_eq!(status!(ek_poll_begin(poll)), OK);
            call!(ek_poll_free(poll));
        }
        for (_, picker) in self.pickers {
            call!(ek_picker_free(picker));
        }
    }
}

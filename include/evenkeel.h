/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * evenkeel: a lock-free pool of workers that answers which worker takes this request.
 *
 * Generated from src/ffi; changes belong there. C11 or later, C++11 or later.
 *
 *
 * CONVENTIONS
 *
 * The contract of every function below, unless the function says otherwise.
 *
 * Status. Functions return EK_OK, which is 0, or a negative EK_ERR_... number. Numbers are frozen.
 * After an error the pool and everything that was passed are as before, but for the totals that
 * count refusals and anomalies, and ek_error_message has the reason in words, for this thread.
 *
 * Parameters. The object comes first, inputs next, out_... last. Every out_... is required, every
 * pointer is checked for NULL, and NULL is EK_ERR_NULL where it isn't given a meaning. const
 * means that the call does not change the pool. Enumerations and flags arrive as uint32_t and are
 * checked: a number that has no name here is EK_ERR_INVALID, never another one's meaning; flags
 * are 0 or 1. Strings end with NUL and are UTF-8.
 *
 * Growing structs. Structs may get more fields at their end, so each comes with its size: in its
 * struct_size, which ek_..._init sets along with all defaults, or as a parameter, the distance from
 * one element to the next. A smaller size than the library's: the missing fields have their
 * defaults. A larger one: the bytes that the library doesn't know must be 0, else EK_ERR_VERSION.
 * What the library writes is cut, or followed by zeros up to the given size. A size below 8 or
 * above 4096 is EK_ERR_INVALID. In an array of structs that have a struct_size, this is the
 * element's size and may be smaller than the distance.
 *
 * Lists of workers. A count of EK_ALL means all workers, 0 means none whatever the pointer; NULL
 * with any other count is EK_ERR_NULL.
 *
 * Worker ids. Never given out twice, and those of another pool are unknown. Any number may be
 * passed; 0 is never a worker. Active and draining workers are known to ek_pool_finish,
 * ek_pool_finish_worker, ek_pool_grow, ek_pool_retarget (the worker that the request leaves),
 * ek_pool_abandon and ek_pool_stats; everything else knows active ones alone (EK_ERR_UNKNOWN).
 *
 * Tokens. A request's tokens are at most 4,294,967,295, else EK_ERR_INVALID. A count that would
 * not fit, of requests (1,048,575 a worker) or of tokens (4,294,967,295 a worker): EK_ERR_OVERFLOW.
 *
 * Ownership. No allocation crosses this border: what ..._new makes, ..._free takes, strings that
 * are returned are constants, strings that are passed are copied. Pools are counted: ek_pool_ref
 * adds one, ek_pool_free takes one away; pickers and polls hold their pool. A ticket holds
 * nothing; while requests are in flight, somebody must hold the pool to finish them.
 *
 * Thread safety. Any thread may use a pool at any time, also for what changes it. A picker or a
 * poll serves one thread at a time, on whichever thread. ek_..._free must be the caller's last use
 * of its reference. Requests race in documented, bounded ways: docs/benign-races.md.
 *
 * Progress. Each function says which of these it is. Wait-free: a bounded number of steps,
 * whatever other threads do. Lock-free: repeats only because another thread got on. May block:
 * waits for other threads that change the pool, at most one second, then EK_ERR_BUSY. No choice of
 * a worker ever waits for a thread that changes the pool. Functions that allocate say
 * so; an EK_ERR_INVALID may allocate.
 *
 * Forks and signals. A forked child has a pool of its own, as it was at that moment; its random
 * streams are new, other than those of pickers with a seed. Don't call from signal handlers. A
 * choice among more than 1,024 workers takes up to 16 KiB of stack.
 *
 * Nothing unwinds out of the library: a panic inside is EK_ERR_PANIC, and the pool stays usable.
 * There is no hidden thread, and no thread-local value with a destructor.
 */

#ifndef EVENKEEL_H
#define EVENKEEL_H

#include <stddef.h>
#include <stdint.h>

#if SIZE_MAX != UINT64_MAX
#error "evenkeel is for 64-bit targets"
#endif

/// As a count of workers: all of them.
#define EK_ALL SIZE_MAX


/// The number of the ABI that this header is of. Libraries of other numbers have other contracts;
/// the shared library's SONAME ends with it. See ek_abi_version.
#define EK_ABI_VERSION 0

/// What functions return: 0, or a negative number. Frozen.
typedef enum {
    /// Done.
    EK_OK = 0,
    /// A pointer is NULL that must not be.
    EK_ERR_NULL = -1,
    /// A value outside what is allowed.
    EK_ERR_INVALID = -2,
    /// Every slot of the pool is taken.
    EK_ERR_FULL = -3,
    /// An active worker has this key already.
    EK_ERR_EXISTS = -4,
    /// No such worker.
    EK_ERR_UNKNOWN = -5,
    /// No worker is eligible.
    EK_ERR_EMPTY = -6,
    /// Every worker that is eligible otherwise is at its max_in_flight.
    EK_ERR_SATURATED = -7,
    /// The request has ended already, its worker was abandoned, or it is another pool's.
    EK_ERR_STALE = -8,
    /// A count would not fit.
    EK_ERR_OVERFLOW = -9,
    /// Other threads kept changing the pool for one second.
    EK_ERR_BUSY = -10,
    /// A struct is larger than this library's, and what is beyond isn't 0.
    EK_ERR_VERSION = -11,
    /// The operating system gave no random numbers, or no memory for the pool.
    EK_ERR_IO = -12,
    /// A fault inside the library. The pool stays usable.
    EK_ERR_PANIC = -13,
} ek_status;

/// How a worker is chosen among the eligible ones.
typedef enum {
    /// The pool's, as tuned.
    EK_POLICY_DEFAULT = 0,
    /// The next eligible slot after the last chosen one.
    EK_POLICY_ROUND_ROBIN = 1,
    /// Uniform.
    EK_POLICY_RANDOM = 2,
    /// Of two distinct uniform draws, the one with fewer polled tokens; if either has no load, or
    /// they are equal, the one with fewer requests in flight; then the first drawn.
    EK_POLICY_P2C_TOKENS = 3,
    /// Of two distinct uniform draws, the one with fewer requests in flight; on a tie, if both have
    /// a load, the one with fewer polled tokens; then the first drawn.
    EK_POLICY_P2C_REQUESTS = 4,
    /// Fewest requests in flight over all; ties by polled tokens, then uniformly at random. If one
    /// has a load, only those that have one compete, unless tuned otherwise.
    EK_POLICY_LEAST_REQUESTS = 5,
    /// Fewest live tokens over all: polled tokens plus credit for what began and ended since the poll
    /// was sent. Ties by requests in flight, then uniformly at random. Workers without a load as under
    /// least_requests; where those compete, with their tokens in flight.
    EK_POLICY_LEAST_TOKENS = 6,
    /// Smallest requests in flight × request_tokens + live tokens over all; ties uniformly at random.
    /// Workers without a load as under least_tokens.
    EK_POLICY_BALANCED = 7,
    /// The worker that the request's hash ranks first: rendezvous hashing by the workers' keys, shares
    /// by weight. A worker that comes or goes moves only its own hashes. One that is above
    /// hash_load_factor percent of the mean is passed over for the next in the hash's order. The
    /// placement is evenkeel's own, the same for all time, in Rust and in C.
    EK_POLICY_CONSISTENT_HASHING = 8,
} ek_policy;

/// Who has a reason not to choose a worker: one bit each. A worker is eligible only without any.
typedef enum {
    /// The host.
    EK_VETO_HOST = 1,
    /// Health checks.
    EK_VETO_HEALTH = 2,
    /// The operator.
    EK_VETO_OPERATOR = 4,
} ek_veto;

/// What ek_pool_update changes: one bit each.
typedef enum {
    /// weight.
    EK_FIELD_WEIGHT = 1,
    /// max_in_flight.
    EK_FIELD_MAX_IN_FLIGHT = 2,
    /// label.
    EK_FIELD_LABEL = 4,
} ek_field;

/// Whether a worker takes new requests.
typedef enum {
    /// It does, if it is eligible.
    EK_WORKER_ACTIVE = 1,
    /// It was removed; its last requests still run.
    EK_WORKER_DRAINING = 2,
} ek_worker_state;

/// Chooses for one thread at a time, with its own random generator.
typedef struct ek_picker ek_picker;

/// A question to an engine about a fixed set of workers, asked again and again. One thread at a
/// time.
typedef struct ek_poll ek_poll;

/// The workers a router chooses from. Any thread, concurrently.
typedef struct ek_pool ek_pool;

/// Names one worker of one pool for all time; 0 is never a worker. See ek_worker_slot.
typedef uint64_t ek_worker_id;

/// What choices of a pool go by.
typedef struct {
    /// Set by ek_tuning_init.
    size_t struct_size;
    /// For requests that name none: an ek_policy. EK_POLICY_DEFAULT is EK_POLICY_LEAST_REQUESTS.
    /// Default: EK_POLICY_LEAST_REQUESTS.
    uint32_t policy;
    /// How many distinct workers power_of_two draws: 2 to 255. Default: 2.
    uint32_t choices;
    /// Under balanced, how many tokens cost a step as much as one request more. Default: 0.
    uint32_t request_tokens;
    /// 1: under least_requests, least_tokens and balanced, workers without a load compete also
    /// where others have one. Default: 0.
    uint32_t unreported_compete;
    /// Under consistent_hashing, how many percent of the mean of the eligible workers, by weight, a
    /// worker may have in flight: 100 to 10,000, or 0 for no bound. Default: 0.
    uint64_t hash_load_factor;
} ek_tuning;

/// What a pool is made with.
typedef struct {
    /// Set by ek_pool_config_init.
    size_t struct_size;
    /// The most workers at a time, draining ones among them: 1 to 65,535. Default: 1,024.
    uint32_t capacity;
    /// A load counts as none this many milliseconds after its poll began. 0: never. Default: 0.
    uint64_t load_max_age_ms;
    /// Fixes the cursor's start and the streams of pickers made with seed 0. 0: from the operating
    /// system. Default: 0.
    uint64_t seed;
    /// What choices go by, until ek_pool_tune. NULL: the defaults. Default: NULL.
    const ek_tuning *tuning;
} ek_pool_config;

/// What a worker is added or updated with.
typedef struct {
    /// Set by ek_worker_config_init.
    size_t struct_size;
    /// Share of the requests that it gets, relative to the others': 0 to 1,000,000; with 0 it takes
    /// no new ones. Default: 1.
    uint32_t weight;
    /// The most requests it may have in flight: 1 to 1,048,575, or 0 for no cap. Default: 0.
    uint32_t max_in_flight;
    /// ek_veto bits, set on adding and on adding again; later by ek_pool_veto. Default: 0.
    uint32_t vetoes;
    /// 1: if a worker of this key is draining, add a new one, from 0, instead of reviving it.
    /// Default: 0.
    uint32_t fresh;
    /// For people: host:port or host:port@rank; at most 255 bytes before the NUL. NULL: empty.
    /// Default: NULL.
    const char *label;
} ek_worker_config;

/// What an engine reported of one worker.
typedef struct {
    /// The worker.
    ek_worker_id worker;
    /// Tokens that it holds (SGLang's num_total_tokens). UINT64_MAX: none; the entry is rejected.
    uint64_t tokens;
    /// Running requests, for statistics. UINT32_MAX: unknown.
    uint32_t running;
    /// Waiting requests, for statistics. UINT32_MAX: unknown.
    uint32_t waiting;
    /// When the engine says that it sampled, in any unit: compared for equality alone. The one that
    /// the worker's last report had means "nothing new". 0: none.
    uint64_t timestamp;
} ek_load;

/// What a request asks of the choice.
typedef struct {
    /// Set by ek_request_init.
    size_t struct_size;
    /// An ek_policy. Default: EK_POLICY_DEFAULT, the pool's, as tuned.
    uint32_t policy;
    /// Token cost that its worker carries until it ends. Default: 0.
    uint64_t tokens;
    /// Choose among these alone. Unknown, stale and repeated ids are ignored. Default: NULL.
    const ek_worker_id *candidates;
    /// Default: EK_ALL.
    size_t candidate_count;
    /// Don't choose any of these. Unknown, stale and repeated ids are ignored. Default: NULL.
    const ek_worker_id *excluded;
    /// Default: 0.
    size_t excluded_count;
    /// What consistent_hashing goes by: of a session, a user or a prompt's beginning, such as ek_key of
    /// its name. Default: 0, a hash like any.
    uint64_t hash;
} ek_request;

/// A request in flight, from dispatch or begin to finish. Keep one object a request: it ends once.
typedef struct {
    /// The worker that the request counts on. 0: ended or never begun.
    ek_worker_id worker;
    /// The library's own. See ek_ticket_tokens.
    uint64_t opaque;
} ek_ticket;

/// One worker as it is now. Fields are read one after the other while traffic runs; at rest they
/// fit together: requests dispatched = finished + in_flight.
typedef struct {
    /// Its id.
    ek_worker_id worker;
    /// The caller's name for it.
    uint64_t key;
    /// An ek_worker_state.
    uint32_t state;
    /// ek_veto bits.
    uint32_t vetoes;
    /// Its weight.
    uint32_t weight;
    /// Its cap. 0: none.
    uint32_t max_in_flight;
    /// Requests in flight.
    uint32_t in_flight;
    /// 1: it has a load; 0: none, and the load_... fields are 0.
    uint32_t has_load;
    /// Requests that ended on it, since it was added.
    uint64_t finished;
    /// Tokens in flight.
    uint64_t tokens;
    /// Polled tokens plus credit for what began and ended here since the poll was sent; without a
    /// load the tokens in flight.
    uint64_t live_tokens;
    /// As reported.
    uint64_t load_tokens;
    /// As reported. UINT32_MAX: unknown.
    uint32_t load_running;
    /// As reported. UINT32_MAX: unknown.
    uint32_t load_waiting;
    /// As reported. 0: none.
    uint64_t load_timestamp;
    /// Milliseconds since the poll began that brought the load.
    uint64_t load_age_ms;
    /// Its label, with NUL.
    char label[256];
} ek_worker_stats;

/// Sums over a pool. finished, abandoned, saturated, anomalies, rejected_loads and version never
/// decrease over the pool's life.
typedef struct {
    /// Active workers.
    uint32_t workers;
    /// Draining workers.
    uint32_t draining;
    /// Requests in flight, those on draining workers among them.
    uint64_t in_flight;
    /// Requests that ended.
    uint64_t finished;
    /// Requests dropped by ek_pool_abandon.
    uint64_t abandoned;
    /// Dispatches refused because every worker was at its cap.
    uint64_t saturated;
    /// Ends, grows and retargets of what was not in flight, and ends with other tokens than were.
    uint64_t anomalies;
    /// Entries of load reports that were rejected.
    uint64_t rejected_loads;
    /// Views published: one a change of members, one a report.
    uint64_t version;
} ek_pool_totals;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// The library's version, as "0.1.0".
///
/// Returns: the version. Never NULL.
/// Ownership: the text is a constant.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
const char *ek_version(void);

/// The number of the library's ABI, apart from its version: programs that were compiled with a
/// header of this number (EK_ABI_VERSION) work with it.
///
/// Returns: the number.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
uint32_t ek_abi_version(void);

/// A number that names a label: 64-bit FNV-1a of its bytes as given. Never changes.
///
/// Parameters: label: a string of any length, UTF-8 or not.
/// Returns: the key; 0 for NULL. Any number may be a key, so check label, not the result.
/// Ownership: nothing is kept.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
uint64_t ek_key(const char *label);

/// The slot of a worker: a dense number below the pool's capacity, for the host's own object in an
/// array. It goes to another worker once this one is gone.
///
/// Parameters: worker: an id that a pool gave; others give a number below 65,536.
/// Returns: the slot.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
uint32_t ek_worker_slot(ek_worker_id worker);

/// The policy of a name.
///
/// Parameters: name: round_robin, random, power_of_two:tokens, power_of_two:requests,
/// least_requests, or power_of_two, which means power_of_two:tokens. out_policy: gets the
/// ek_policy.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for any other name.
/// Ownership: nothing is kept.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
int32_t ek_policy_parse(const char *name, uint32_t *out_policy);

/// The policy that the environment variable SGLANG_ROUTER_P2C_LOAD_METRIC asks for: tokens (also if
/// it is unset), requests or least_requests. Nothing else reads the variable.
///
/// Parameters: out_policy: gets the ek_policy.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for any other value of the variable.
/// Ownership: none.
/// Thread safety: any thread, as long as none changes the environment.
/// Progress: allocates.
/// Since: 0.1.
int32_t ek_policy_from_env(uint32_t *out_policy);

/// The name of a policy, as ek_policy_parse takes it.
///
/// Parameters: policy: any number.
/// Returns: the name; NULL for EK_POLICY_DEFAULT and for a number that is none.
/// Ownership: the name is a constant.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
const char *ek_policy_name(uint32_t policy);

/// A status in words.
///
/// Parameters: status: any number.
/// Returns: the words, or "unknown status" for a number that is none. Never NULL.
/// Ownership: the text is a constant.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
const char *ek_status_str(int32_t status);

/// The calling thread's last error in words: the value, and what is allowed. Successful calls leave
/// it; before the first error it is empty.
///
/// Parameters: out_text: room for size bytes, where as many whole characters as fit are written,
/// and NUL. size: at least 1; no message has more than 511 bytes.
/// Returns: EK_OK, also if the text was cut; EK_ERR_NULL; EK_ERR_INVALID.
/// Ownership: out_text stays the caller's.
/// Thread safety: any thread; each has its own last error.
/// Progress: wait-free.
/// Since: 0.1.
int32_t ek_error_message(char *out_text, size_t size);

/// Sets a configuration's struct_size and all defaults; as ek_pool_config_init, for callers without
/// the header's inline functions.
///
/// Parameters: config: an ek_pool_config, as the caller knows it. size: its size.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none.
/// Ownership: config stays the caller's.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
int32_t ek_pool_config_init_sized(void *config, size_t size);

/// Sets a tuning's struct_size and all defaults; as ek_tuning_init, for callers without the
/// header's inline functions.
///
/// Parameters: tuning: an ek_tuning, as the caller knows it. size: its size.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none.
/// Ownership: tuning stays the caller's.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
int32_t ek_tuning_init_sized(void *tuning, size_t size);

/// Sets a configuration's struct_size and all defaults; as ek_worker_config_init, for callers
/// without the header's inline functions.
///
/// Parameters: config: an ek_worker_config, as the caller knows it. size: its size.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none.
/// Ownership: config stays the caller's.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
int32_t ek_worker_config_init_sized(void *config, size_t size);

/// Makes an empty pool.
///
/// Parameters: config: NULL: the defaults. out_pool: gets the pool.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a value out of range; EK_ERR_VERSION; EK_ERR_IO
/// without random numbers from the operating system.
/// Ownership: the caller has the pool's one reference, for ek_pool_free.
/// Thread safety: any thread.
/// Progress: allocates all that the pool will ever need, in proportion to its capacity. Without
/// memory the process ends.
/// Since: 0.1.
int32_t ek_pool_new(const ek_pool_config *config, ek_pool **out_pool);

/// Takes one reference away. With the last one of pool, pickers and polls the pool's memory is
/// freed; requests in flight can't be finished then, and need not be.
///
/// Parameters: pool: NULL: nothing happens.
/// Ownership: the caller's reference is gone.
/// Thread safety: any thread.
/// Progress: wait-free; may free memory.
/// Since: 0.1.
void ek_pool_free(ek_pool *pool);

/// Adds one reference.
///
/// Parameters: pool.
/// Returns: EK_OK; EK_ERR_NULL.
/// Ownership: the caller has one reference more, for one more ek_pool_free.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
int32_t ek_pool_ref(ek_pool *pool);

/// Changes what choices go by, for the choices that follow, also while traffic runs.
///
/// Parameters: pool. tuning: all of the new tuning.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a value out of range; EK_ERR_VERSION.
/// Ownership: nothing is kept.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
int32_t ek_pool_tune(ek_pool *pool, const ek_tuning *tuning);

/// Adds a worker, or revives one of this key that is draining: it keeps its id and its requests,
/// gets this configuration and has no load. With fresh it is a new worker in any case.
///
/// Parameters: pool. key: any number that no active worker has. config: NULL: the defaults.
/// out_worker: gets the id.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_EXISTS if an active worker has the key; EK_ERR_FULL;
/// EK_ERR_INVALID for a value out of range; EK_ERR_VERSION; EK_ERR_BUSY.
/// Ownership: nothing is kept; the label is copied.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
int32_t ek_pool_add(ek_pool *pool,
                    uint64_t key,
                    const ek_worker_config *config,
                    ek_worker_id *out_worker);

/// Adds a worker, or, if an active one has the key, updates it.
///
/// Parameters: pool. key: any number. config: NULL: adds with the defaults, and leaves an active
/// one as it is; its vetoes and fresh bear on adding alone. out_worker: gets the id.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_FULL; EK_ERR_INVALID for a value out of range;
/// EK_ERR_VERSION; EK_ERR_BUSY.
/// Ownership: nothing is kept; the label is copied.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
int32_t ek_pool_ensure(ek_pool *pool,
                       uint64_t key,
                       const ek_worker_config *config,
                       ek_worker_id *out_worker);

/// Makes these the active workers, in one change: adds (or revives) those that are new, keeps those
/// that are active, and drains the rest. All of it happens, or nothing.
///
/// Parameters: pool. keys: count of them, each once. configs: one for each key; NULL: new ones have
/// the defaults, and kept ones stay as they are. config_size: the distance between two of them, in
/// bytes. count: 0: drains all.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_FULL if there are more new keys than vacant slots (those
/// that this change would empty don't count); EK_ERR_INVALID for a value out of range or a key that
/// comes twice; EK_ERR_VERSION; EK_ERR_BUSY.
/// Ownership: nothing is kept; labels are copied.
/// Thread safety: any thread.
/// Progress: may block; allocates.
/// Since: 0.1.
int32_t ek_pool_set_members(ek_pool *pool,
                            const uint64_t *keys,
                            const ek_worker_config *configs,
                            size_t config_size,
                            size_t count);

/// Changes some fields of an active worker.
///
/// Parameters: pool. worker. fields: ek_field bits: what to change. config: has the new values; its
/// other fields are not looked at.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_INVALID for a value out of range;
/// EK_ERR_VERSION; EK_ERR_BUSY.
/// Ownership: nothing is kept; the label is copied.
/// Thread safety: any thread. A dispatch that overlaps a change of the cap may use the old one.
/// Progress: may block.
/// Since: 0.1.
int32_t ek_pool_update(ek_pool *pool,
                       ek_worker_id worker,
                       uint32_t fields,
                       const ek_worker_config *config);

/// Sets or lifts vetoes of an active worker; the others' stay.
///
/// Parameters: pool. worker. who: ek_veto bits, at least one. on: 1 sets them, 0 lifts them.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_INVALID; EK_ERR_BUSY.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
int32_t ek_pool_veto(ek_pool *pool, ek_worker_id worker, uint32_t who, uint32_t on);

/// Takes an active worker out: no dispatch that starts after this returns ends up on it, its
/// requests end as always, and with the last of them its slot is vacant.
///
/// Parameters: pool. worker.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_BUSY.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
int32_t ek_pool_remove(ek_pool *pool, ek_worker_id worker);

/// Drops a worker, active or draining, with its counts. Its tickets are stale from then on.
///
/// Parameters: pool. worker.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_BUSY.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
int32_t ek_pool_abandon(ek_pool *pool, ek_worker_id worker);

/// The active worker of a key.
///
/// Parameters: pool. key. out_worker: gets the id.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_BUSY.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
int32_t ek_pool_find(const ek_pool *pool, uint64_t key, ek_worker_id *out_worker);

/// Replaces the loads of all active workers by this report, as if its poll had begun now. Workers
/// that are not in it have no load afterwards.
///
/// Parameters: pool. loads: count of them. load_size: the distance between two of them, in bytes.
/// count: 0: clears all loads. out_rejected: gets the number of rejected entries: of unknown
/// workers, those after a worker's first valid one, and those whose tokens are UINT64_MAX.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none; EK_ERR_VERSION;
/// EK_ERR_BUSY.
/// Ownership: nothing is kept.
/// Thread safety: any thread, also between choices of a picker.
/// Progress: may block; does not allocate.
/// Since: 0.1.
int32_t ek_pool_publish(ek_pool *pool,
                        const ek_load *loads,
                        size_t load_size,
                        size_t count,
                        size_t *out_rejected);

/// Makes a poll: a question to one engine about these workers, asked again and again. What the pool
/// counts between ek_poll_begin and ek_poll_publish is credited on top of the answer.
///
/// Parameters: pool. workers: count ids; unknown and repeated ones are ignored. count: EK_ALL: the
/// workers that are active at each begin. out_poll: gets the poll.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a count that no memory holds.
/// Ownership: the poll is the caller's, for ek_poll_free, and holds its pool.
/// Thread safety: any thread.
/// Progress: allocates.
/// Since: 0.1.
int32_t ek_poll_new(ek_pool *pool, const ek_worker_id *workers, size_t count, ek_poll **out_poll);

/// Call it right before the question is sent. A poll that was begun and not published starts anew.
///
/// Parameters: poll.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_BUSY, and an earlier begin still stands.
/// Ownership: none.
/// Thread safety: one thread at a time for the poll.
/// Progress: may block; does not allocate.
/// Since: 0.1.
int32_t ek_poll_begin(ek_poll *poll);

/// Publishes the answer. Covered workers that are not in it have no load afterwards; other workers'
/// loads stay. Of overlapping polls of a worker, the one that began last stays.
///
/// Parameters: poll. loads: count of them. load_size: the distance between two of them, in bytes.
/// out_rejected: gets the number of rejected entries: of workers that it does not cover, second
/// ones of a worker, those whose tokens are UINT64_MAX, and those of workers whose stored report is
/// of a poll that began later.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID if it was not begun since it was last published, or
/// for a size that is none; EK_ERR_VERSION; EK_ERR_BUSY.
/// Ownership: nothing is kept.
/// Thread safety: one thread at a time for the poll.
/// Progress: may block; does not allocate.
/// Since: 0.1.
int32_t ek_poll_publish(ek_poll *poll,
                        const ek_load *loads,
                        size_t load_size,
                        size_t count,
                        size_t *out_rejected);

/// Frees a poll, and its pool if nobody else holds it.
///
/// Parameters: poll: NULL: nothing happens.
/// Ownership: the poll is gone.
/// Thread safety: any thread, as the last use of the poll.
/// Progress: wait-free; frees memory.
/// Since: 0.1.
void ek_poll_free(ek_poll *poll);

/// Sets a request's struct_size and all defaults; as ek_request_init, for callers without the
/// header's inline functions.
///
/// Parameters: request: an ek_request, as the caller knows it. size: its size.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none.
/// Ownership: request stays the caller's.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
int32_t ek_request_init_sized(void *request, size_t size);

/// Chooses a worker and counts nothing: advice. Of two concurrent picks both may choose the same
/// worker, and it may be removed meanwhile. Uses the calling thread's random generator.
///
/// Parameters: pool. request: what is asked of the choice; NULL: the defaults. out_worker: gets the
/// id.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_EMPTY; EK_ERR_INVALID; EK_ERR_VERSION; EK_ERR_IO without
/// random numbers from the operating system.
/// Ownership: nothing is kept.
/// Thread safety: any thread.
/// Progress: wait-free; does not allocate.
/// Since: 0.1.
int32_t ek_pool_pick(ek_pool *pool, const ek_request *request, ek_worker_id *out_worker);

/// Chooses a worker and counts the request on it, in one step. Uses the calling thread's random
/// generator.
///
/// Parameters: pool. request: what is asked of the choice; NULL: the defaults. out_ticket: gets the
/// ticket.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_EMPTY; EK_ERR_SATURATED; EK_ERR_OVERFLOW; EK_ERR_INVALID;
/// EK_ERR_VERSION; EK_ERR_IO without random numbers from the operating system.
/// Ownership: nothing is kept. The request stays counted until the ticket is finished.
/// Thread safety: any thread.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
int32_t ek_pool_dispatch(ek_pool *pool, const ek_request *request, ek_ticket *out_ticket);

/// Makes a picker: it chooses with its own random generator, and faster than the pool.
///
/// Parameters: pool. seed: the same one, the same choices; 0: the next stream of the pool's seed,
/// or, if that is 0 too, one from the operating system. out_picker: gets the picker.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_IO without random numbers from the operating system.
/// Ownership: the picker is the caller's, for ek_picker_free, and holds its pool.
/// Thread safety: any thread.
/// Progress: allocates.
/// Since: 0.1.
int32_t ek_picker_new(ek_pool *pool, uint64_t seed, ek_picker **out_picker);

/// Frees a picker, and its pool if nobody else holds it. Its requests in flight are not touched.
///
/// Parameters: picker: NULL: nothing happens.
/// Ownership: the picker is gone.
/// Thread safety: any thread, as the last use of the picker.
/// Progress: wait-free; frees memory.
/// Since: 0.1.
void ek_picker_free(ek_picker *picker);

/// As ek_pool_pick, with the picker's random generator.
///
/// Parameters: picker. request: what is asked of the choice; NULL: the defaults. out_worker: gets
/// the id.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_EMPTY; EK_ERR_INVALID; EK_ERR_VERSION; EK_ERR_IO, only in
/// a forked child.
/// Ownership: nothing is kept.
/// Thread safety: one thread at a time for the picker.
/// Progress: wait-free; does not allocate.
/// Since: 0.1.
int32_t ek_picker_pick(ek_picker *picker, const ek_request *request, ek_worker_id *out_worker);

/// As ek_pool_dispatch, with the picker's random generator: the fastest.
///
/// Parameters: picker. request: what is asked of the choice; NULL: the defaults. out_ticket: gets
/// the ticket.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_EMPTY; EK_ERR_SATURATED; EK_ERR_OVERFLOW; EK_ERR_INVALID;
/// EK_ERR_VERSION; EK_ERR_IO, only in a forked child.
/// Ownership: nothing is kept. The request stays counted until the ticket is finished.
/// Thread safety: one thread at a time for the picker.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
int32_t ek_picker_dispatch(ek_picker *picker, const ek_request *request, ek_ticket *out_ticket);

/// Counts a request on an active worker that was chosen elsewhere. Vetoes don't bind it, the cap
/// does.
///
/// Parameters: pool. worker. tokens: the request's token cost. out_ticket: gets the ticket.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_SATURATED; EK_ERR_OVERFLOW;
/// EK_ERR_INVALID.
/// Ownership: the request stays counted until the ticket is finished.
/// Thread safety: any thread.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
int32_t ek_pool_begin(ek_pool *pool, ek_worker_id worker, uint64_t tokens, ek_ticket *out_ticket);

/// Ends a request. If fewer tokens are in flight than it claims, they stop at 0 and an anomaly is
/// counted.
///
/// Parameters: pool: the one that the ticket is of. ticket: cleared on EK_OK, atomically.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_STALE for a ticket that has ended or never begun, whose
/// worker was abandoned, or of another pool: an anomaly is counted, and nothing else.
/// Ownership: the ticket's object stays the caller's, and is free for another request.
/// Thread safety: any thread. If several finish one ticket object at once, exactly one succeeds; a
/// byte copy of a ticket can't be told from another request of its worker.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
int32_t ek_pool_finish(ek_pool *pool, ek_ticket *ticket);

/// Ends a request of this worker, for hosts that keep only the worker. Which of its requests can't
/// be told.
///
/// Parameters: pool. worker. tokens: as the request began with, and grew by.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_STALE if the worker is unknown or has no request in flight:
/// an anomaly is counted, and nothing else; EK_ERR_INVALID.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
int32_t ek_pool_finish_worker(ek_pool *pool, ek_worker_id worker, uint64_t tokens);

/// Adds tokens to a request that runs.
///
/// Parameters: pool: the one that the ticket is of. ticket: has the sum afterwards. tokens: to add.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_STALE, as ek_pool_finish; EK_ERR_OVERFLOW; EK_ERR_INVALID.
/// Ownership: the ticket's object stays the caller's.
/// Thread safety: any thread, with the ticket alone.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
int32_t ek_pool_grow(ek_pool *pool, ek_ticket *ticket, uint64_t tokens);

/// Moves a request to another active worker, where only the cap binds. For a moment it counts on
/// both. It ends once, on the last.
///
/// Parameters: pool: the one that the ticket is of. ticket: is of the new worker afterwards.
/// worker: the new one.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_STALE, as ek_pool_finish; EK_ERR_UNKNOWN, EK_ERR_SATURATED
/// and EK_ERR_OVERFLOW of the new worker. On an error the request is where it was.
/// Ownership: the ticket's object stays the caller's.
/// Thread safety: any thread, with the ticket alone.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
int32_t ek_pool_retarget(ek_pool *pool, ek_ticket *ticket, ek_worker_id worker);

/// The tokens that a ticket carries.
///
/// Parameters: ticket: one of any pool.
/// Returns: the tokens; 0 for NULL, and for a ticket that was finished.
/// Ownership: none.
/// Thread safety: any thread, with the ticket alone.
/// Progress: wait-free.
/// Since: 0.1.
uint64_t ek_ticket_tokens(const ek_ticket *ticket);

/// All active and draining workers, in the order of their slots. Changes nothing that a choice
/// depends on.
///
/// Parameters: pool. out_stats: room for capacity rows; NULL with capacity 0: asks for the number
/// alone. stats_size: the distance between two rows, in bytes; sizeof(ek_worker_stats). capacity:
/// the most rows that are written. out_count: gets the number of workers, also if it is larger.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none; EK_ERR_BUSY.
/// Ownership: the rows stay the caller's.
/// Thread safety: any thread.
/// Progress: may block; does not allocate.
/// Since: 0.1.
int32_t ek_pool_stats(const ek_pool *pool,
                      void *out_stats,
                      size_t stats_size,
                      size_t capacity,
                      size_t *out_count);

/// Sums over a pool.
///
/// Parameters: pool. out_totals: gets an ek_pool_totals, as the caller knows it. totals_size: its
/// size.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none; EK_ERR_BUSY.
/// Ownership: out_totals stays the caller's.
/// Thread safety: any thread.
/// Progress: may block; does not allocate.
/// Since: 0.1.
int32_t ek_pool_totals_get(const ek_pool *pool, void *out_totals, size_t totals_size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

/// Sets struct_size and all defaults, for the struct as this header has it.
/// Since: 0.1.
static inline int32_t ek_pool_config_init(ek_pool_config *config)
{
    return ek_pool_config_init_sized(config, sizeof *config);
}

/// Sets struct_size and all defaults, for the struct as this header has it.
/// Since: 0.1.
static inline int32_t ek_tuning_init(ek_tuning *tuning)
{
    return ek_tuning_init_sized(tuning, sizeof *tuning);
}

/// Sets struct_size and all defaults, for the struct as this header has it.
/// Since: 0.1.
static inline int32_t ek_worker_config_init(ek_worker_config *config)
{
    return ek_worker_config_init_sized(config, sizeof *config);
}

/// Sets struct_size and all defaults, for the struct as this header has it.
/// Since: 0.1.
static inline int32_t ek_request_init(ek_request *request)
{
    return ek_request_init_sized(request, sizeof *request);
}

#endif /* EVENKEEL_H */

/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * evenkeel: a lock-free pool of workers that answers which worker takes this request.
 *
 * C++17 or later, with or without exceptions. What evenkeel.h says holds here: this adds ownership,
 * results that can't be overlooked, and defaults.
 *
 * Handles (Pool, Picker, Poll, InFlight) move and don't copy. An empty one, made by default or
 * moved from, answers Status::null to everything. Whatever order they end in is fine: pickers,
 * polls and requests in flight hold their pool.
 *
 * Nothing throws; without memory the process ends, as in the library.
 *
 * Thread safety. Any thread may use a Pool at any time, other than to move or destroy it. A Picker,
 * a Poll or an InFlight serves one thread at a time, on whichever thread.
 */

#ifndef EVENKEEL_HPP
#define EVENKEEL_HPP

#include "evenkeel.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace evenkeel {

/// What functions return, alone or in a Result.
enum class [[nodiscard]] Status : std::int32_t {
    ok = EK_OK,
    null = EK_ERR_NULL,
    invalid = EK_ERR_INVALID,
    full = EK_ERR_FULL,
    exists = EK_ERR_EXISTS,
    unknown = EK_ERR_UNKNOWN,
    empty = EK_ERR_EMPTY,
    saturated = EK_ERR_SATURATED,
    stale = EK_ERR_STALE,
    overflow = EK_ERR_OVERFLOW,
    busy = EK_ERR_BUSY,
    version = EK_ERR_VERSION,
    io = EK_ERR_IO,
    panic = EK_ERR_PANIC,
};

/// How a worker is chosen among the eligible ones.
enum class Policy : std::uint32_t {
    /// The pool's, as tuned.
    default_ = EK_POLICY_DEFAULT,
    round_robin = EK_POLICY_ROUND_ROBIN,
    random = EK_POLICY_RANDOM,
    p2c_tokens = EK_POLICY_P2C_TOKENS,
    p2c_requests = EK_POLICY_P2C_REQUESTS,
    least_requests = EK_POLICY_LEAST_REQUESTS,
    least_tokens = EK_POLICY_LEAST_TOKENS,
    balanced = EK_POLICY_BALANCED,
    consistent_hashing = EK_POLICY_CONSISTENT_HASHING,
};

/// Who has a reason not to choose a worker: one bit each, to be combined by |.
enum Veto : std::uint32_t {
    veto_host = EK_VETO_HOST,
    veto_health = EK_VETO_HEALTH,
    veto_operator = EK_VETO_OPERATOR,
};

/// Names one worker of one pool for all time; 0 is never a worker.
using WorkerId = ek_worker_id;
/// A request in flight that is finished by hand; see InFlight::release.
using Ticket = ek_ticket;
/// One worker as it is now.
using WorkerStats = ek_worker_stats;
/// Sums over a pool.
using Totals = ek_pool_totals;

/// A value, or why there is none. The value of a failed one is empty: a 0, or an empty handle.
template <typename T>
class [[nodiscard]] Result {
public:
    Result(T value) noexcept : status_(Status::ok), value_(std::move(value)) {}
    Result(Status error) noexcept : status_(error), value_() {}

    explicit operator bool() const noexcept { return status_ == Status::ok; }
    Status status() const noexcept { return status_; }

    T &operator*() & noexcept { return value_; }
    const T &operator*() const & noexcept { return value_; }
    // By value, so that `for (const auto &row : *pool.stats())` has something to run over.
    T operator*() && noexcept { return std::move(value_); }
    T *operator->() noexcept { return &value_; }
    const T *operator->() const noexcept { return &value_; }

private:
    Status status_;
    T value_;
};

/// Elements of the caller's, side by side: of a vector, an array, a std::span. Not copied, so they
/// must live as long as it is used.
template <typename T>
class List {
public:
    constexpr List() noexcept = default;
    constexpr List(const T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <typename From, typename = std::enable_if_t<std::is_same_v<
                                 std::remove_cv_t<std::remove_pointer_t<
                                     decltype(std::data(std::declval<const From &>()))>>,
                                 T>>>
    constexpr List(const From &from) noexcept : data_(std::data(from)), size_(std::size(from)) {}

    constexpr const T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }

private:
    const T *data_ = nullptr;
    std::size_t size_ = 0;
};

/// As a list of workers: all of them.
inline constexpr List<WorkerId> all_workers{nullptr, EK_ALL};

/// What choices of a pool go by; as ek_tuning.
struct Tuning {
    Policy policy = Policy::least_requests;
    std::uint32_t choices = 2;
    std::uint32_t request_tokens = 0;
    bool unreported_compete = false;
    std::uint32_t hash_load_factor = 0;
};

/// What a pool is made with; as ek_pool_config.
struct PoolConfig {
    std::uint32_t capacity = 1024;
    std::uint64_t load_max_age_ms = 0;
    std::uint64_t seed = 0;
    Tuning tuning = {};
};

/// What a worker is added or updated with; as ek_worker_config.
struct WorkerConfig {
    std::uint32_t weight = 1;
    std::uint32_t max_in_flight = 0;
    /// Veto bits.
    std::uint32_t vetoes = 0;
    bool fresh = false;
    const char *label = nullptr;
};

/// A worker of Pool::set_members.
struct Member {
    std::uint64_t key = 0;
    WorkerConfig config = {};
};

/// What Pool::update changes: what is set.
struct WorkerUpdate {
    std::optional<std::uint32_t> weight = {};
    std::optional<std::uint32_t> max_in_flight = {};
    const char *label = nullptr;
};

/// What an engine reported of one worker; as ek_load, running, waiting and timestamp unknown.
struct Load : ek_load {
    Load(WorkerId of, std::uint64_t held) noexcept
        : ek_load{of, held, UINT32_MAX, UINT32_MAX, 0} {}
};

/// What a request asks of the choice; as ek_request.
struct Request {
    Policy policy = Policy::default_;
    std::uint64_t tokens = 0;
    List<WorkerId> candidates = all_workers;
    List<WorkerId> excluded = {};
    /// What consistent_hashing goes by.
    std::uint64_t hash = 0;
};

inline const char *version() noexcept { return ek_version(); }

/// A number that names a label; as ek_key.
[[nodiscard]] inline std::uint64_t key(const char *label) noexcept { return ek_key(label); }
[[nodiscard]] inline std::uint64_t key(const std::string &label) noexcept {
    return ek_key(label.c_str());
}

/// The slot of a worker; as ek_worker_slot. See PerWorker.
[[nodiscard]] inline std::uint32_t worker_slot(WorkerId worker) noexcept {
    return ek_worker_slot(worker);
}

/// A status in words.
[[nodiscard]] inline const char *status_str(Status status) noexcept {
    return ek_status_str(static_cast<std::int32_t>(status));
}

/// The calling thread's last error in words: the value, and what is allowed.
[[nodiscard]] inline std::string error_message() noexcept {
    std::array<char, 512> text = {};
    ek_error_message(text.data(), text.size());
    return text.data();
}

namespace detail {

struct Free {
    void operator()(ek_pool *pool) const noexcept { ek_pool_free(pool); }
    void operator()(ek_picker *picker) const noexcept { ek_picker_free(picker); }
    void operator()(ek_poll *poll) const noexcept { ek_poll_free(poll); }
};

template <typename T>
using Handle = std::unique_ptr<T, Free>;

/// One reference of the pool, behind a count of its own on cache lines of its own: threads that
/// hold requests by different leases write nothing in common.
using Lease = std::shared_ptr<ek_pool>;

inline Lease lease(ek_pool *pool) noexcept {
    struct alignas(128) Reference {
        explicit Reference(ek_pool *referred) noexcept : pool(referred) { ek_pool_ref(pool); }
        Reference(const Reference &) = delete;
        Reference &operator=(const Reference &) = delete;
        ~Reference() { ek_pool_free(pool); }
        ek_pool *pool;
    };
    return Lease(std::make_shared<Reference>(pool), pool);
}

/// The calling thread's number, counted from the first one that asked.
inline std::size_t thread_number() noexcept {
    static std::atomic<std::size_t> next{0};
    thread_local const std::size_t number = next.fetch_add(1, std::memory_order_relaxed);
    return number;
}

/// The result of a call that gives a T.
template <typename T>
Result<T> result(std::int32_t status, T value) noexcept {
    if (status != EK_OK) return static_cast<Status>(status);
    return value;
}

// As C has them. Requests are built field by field, as each choice takes one.

inline ek_request raw(const Request &request) noexcept {
    ek_request raw = {};
    raw.struct_size = sizeof raw;
    raw.policy = static_cast<std::uint32_t>(request.policy);
    raw.tokens = request.tokens;
    raw.candidates = request.candidates.data();
    raw.candidate_count = request.candidates.size();
    raw.excluded = request.excluded.data();
    raw.excluded_count = request.excluded.size();
    raw.hash = request.hash;
    return raw;
}

inline ek_tuning raw(const Tuning &tuning) noexcept {
    ek_tuning raw;
    ek_tuning_init(&raw);
    raw.policy = static_cast<std::uint32_t>(tuning.policy);
    raw.choices = tuning.choices;
    raw.request_tokens = tuning.request_tokens;
    raw.unreported_compete = tuning.unreported_compete;
    raw.hash_load_factor = tuning.hash_load_factor;
    return raw;
}

inline ek_worker_config raw(const WorkerConfig &config) noexcept {
    ek_worker_config raw;
    ek_worker_config_init(&raw);
    raw.weight = config.weight;
    raw.max_in_flight = config.max_in_flight;
    raw.vetoes = config.vetoes;
    raw.fresh = config.fresh;
    raw.label = config.label;
    return raw;
}

}  // namespace detail

/// The policy of a name; as ek_policy_parse.
inline Result<Policy> policy_parse(const char *name) noexcept {
    std::uint32_t policy = 0;
    const std::int32_t status = ek_policy_parse(name, &policy);
    return detail::result(status, static_cast<Policy>(policy));
}

/// The policy that SGLANG_ROUTER_P2C_LOAD_METRIC asks for; as ek_policy_from_env.
inline Result<Policy> policy_from_env() noexcept {
    std::uint32_t policy = 0;
    const std::int32_t status = ek_policy_from_env(&policy);
    return detail::result(status, static_cast<Policy>(policy));
}

/// The name of a policy; nullptr for Policy::default_.
[[nodiscard]] inline const char *policy_name(Policy policy) noexcept {
    return ek_policy_name(static_cast<std::uint32_t>(policy));
}

/// A request in flight that finishes itself at the end of its life: at the end of a scope, with the
/// response that it was moved into, on whichever thread. Outlives picker and pool.
class [[nodiscard]] InFlight {
public:
    InFlight() noexcept = default;
    InFlight(InFlight &&from) noexcept
        : pool_(std::move(from.pool_)), ticket_(std::exchange(from.ticket_, Ticket{})) {}
    InFlight &operator=(InFlight &&from) noexcept {
        InFlight taken(std::move(from));
        std::swap(pool_, taken.pool_);
        std::swap(ticket_, taken.ticket_);
        return *this;
    }
    ~InFlight() {
        // Stale is counted as an anomaly, and there is nobody here to tell.
        if (*this) ek_pool_finish(pool_.get(), &ticket_);
    }

    /// Whether there is a request to finish.
    explicit operator bool() const noexcept { return ticket_.worker != 0; }
    /// The worker that the request counts on; 0 without one.
    [[nodiscard]] WorkerId worker() const noexcept { return ticket_.worker; }
    /// The tokens that it counts.
    [[nodiscard]] std::uint64_t tokens() const noexcept { return ek_ticket_tokens(&ticket_); }

    /// Adds tokens to it; as ek_pool_grow.
    Status grow(std::uint64_t tokens) noexcept {
        return static_cast<Status>(ek_pool_grow(pool_.get(), &ticket_, tokens));
    }
    /// Moves it to another active worker; as ek_pool_retarget.
    Status retarget(WorkerId worker) noexcept {
        return static_cast<Status>(ek_pool_retarget(pool_.get(), &ticket_, worker));
    }
    /// Ends it now, and says whether it was still in flight. It is empty afterwards.
    Status finish() noexcept {
        const Lease pool = std::move(pool_);
        Ticket ticket = release();
        return static_cast<Status>(ek_pool_finish(pool.get(), &ticket));
    }
    /// The ticket, which is then to be finished by hand: by ek_pool_finish, ek_pool_finish_worker
    /// or Pool::guard. It is empty afterwards.
    [[nodiscard]] Ticket release() noexcept {
        pool_.reset();
        return std::exchange(ticket_, Ticket{});
    }

private:
    using Lease = detail::Lease;
    friend class Pool;
    friend class Picker;

    InFlight(Lease pool, Ticket ticket) noexcept : pool_(std::move(pool)), ticket_(ticket) {}

    Lease pool_;
    Ticket ticket_ = {};
};

/// A question to an engine about a fixed set of workers, asked again and again.
class [[nodiscard]] Poll {
public:
    Poll() noexcept = default;

    /// Call it right before the question is sent; as ek_poll_begin.
    Status begin() noexcept { return static_cast<Status>(ek_poll_begin(handle_.get())); }
    /// Publishes the answer; as ek_poll_publish. Gives the number of rejected entries.
    Result<std::size_t> publish(List<Load> loads) noexcept {
        std::size_t rejected = 0;
        const std::int32_t status =
            ek_poll_publish(handle_.get(), loads.data(), sizeof(Load), loads.size(), &rejected);
        return detail::result(status, rejected);
    }

private:
    friend class Pool;
    explicit Poll(ek_poll *poll) noexcept : handle_(poll) {}

    detail::Handle<ek_poll> handle_;
};

/// Chooses for one thread at a time, with its own random generator: repeatable with a seed, and
/// faster than the pool.
class [[nodiscard]] Picker {
public:
    Picker() noexcept = default;

    /// Chooses a worker and counts nothing; as ek_picker_pick.
    Result<WorkerId> pick(const Request &request = {}) noexcept {
        const ek_request raw = detail::raw(request);
        WorkerId worker = 0;
        const std::int32_t status = ek_picker_pick(handle_.get(), &raw, &worker);
        return detail::result(status, worker);
    }
    /// Chooses a worker and counts the request on it; as ek_picker_dispatch.
    Result<InFlight> dispatch(const Request &request = {}) noexcept {
        const ek_request raw = detail::raw(request);
        Ticket ticket = {};
        const std::int32_t status = ek_picker_dispatch(handle_.get(), &raw, &ticket);
        if (status != EK_OK) return static_cast<Status>(status);
        return InFlight(lease_, ticket);
    }

private:
    friend class Pool;
    Picker(ek_picker *picker, ek_pool *pool) noexcept
        : handle_(picker), lease_(detail::lease(pool)) {}

    detail::Handle<ek_picker> handle_;
    detail::Lease lease_;
};

/// The workers a router chooses from.
class [[nodiscard]] Pool {
public:
    Pool() noexcept = default;

    /// Makes an empty pool; as ek_pool_new.
    static Result<Pool> create(const PoolConfig &config = {}) noexcept {
        const ek_tuning tuning = detail::raw(config.tuning);
        ek_pool_config raw;
        ek_pool_config_init(&raw);
        raw.capacity = config.capacity;
        raw.load_max_age_ms = config.load_max_age_ms;
        raw.seed = config.seed;
        raw.tuning = &tuning;
        ek_pool *pool = nullptr;
        const std::int32_t status = ek_pool_new(&raw, &pool);
        if (status != EK_OK) return static_cast<Status>(status);
        return Pool(pool);
    }

    /// The pool as C has it, still held by this.
    [[nodiscard]] ek_pool *get() const noexcept { return handle_.get(); }

    /// Changes what choices go by; as ek_pool_tune.
    Status tune(const Tuning &tuning) noexcept {
        const ek_tuning raw = detail::raw(tuning);
        return static_cast<Status>(ek_pool_tune(get(), &raw));
    }

    /// Adds a worker, or revives one that is draining; as ek_pool_add.
    Result<WorkerId> add(std::uint64_t key, const WorkerConfig &config = {}) noexcept {
        const ek_worker_config raw = detail::raw(config);
        WorkerId worker = 0;
        const std::int32_t status = ek_pool_add(get(), key, &raw, &worker);
        return detail::result(status, worker);
    }
    /// Adds a worker with the defaults, or leaves an active one as it is; as ek_pool_ensure.
    Result<WorkerId> ensure(std::uint64_t key) noexcept { return ensure(key, nullptr); }
    /// Adds a worker, or updates an active one; as ek_pool_ensure.
    Result<WorkerId> ensure(std::uint64_t key, const WorkerConfig &config) noexcept {
        const ek_worker_config raw = detail::raw(config);
        return ensure(key, &raw);
    }
    /// Makes these the active workers, and leaves those that are as they are; as
    /// ek_pool_set_members.
    Status set_members(List<std::uint64_t> keys) noexcept {
        return set_members(keys, nullptr);
    }
    /// Makes these the active workers; as ek_pool_set_members.
    Status set_members(List<Member> members) noexcept {
        std::vector<std::uint64_t> keys;
        std::vector<ek_worker_config> configs;
        for (std::size_t i = 0; i < members.size(); i++) {
            keys.push_back(members.data()[i].key);
            configs.push_back(detail::raw(members.data()[i].config));
        }
        return set_members(keys, configs.data());
    }
    /// Changes what is set of an active worker; as ek_pool_update.
    Status update(WorkerId worker, const WorkerUpdate &update) noexcept {
        ek_worker_config raw;
        ek_worker_config_init(&raw);
        raw.weight = update.weight.value_or(raw.weight);
        raw.max_in_flight = update.max_in_flight.value_or(raw.max_in_flight);
        raw.label = update.label;
        std::uint32_t fields = 0;
        if (update.weight) fields |= EK_FIELD_WEIGHT;
        if (update.max_in_flight) fields |= EK_FIELD_MAX_IN_FLIGHT;
        if (update.label != nullptr) fields |= EK_FIELD_LABEL;
        return static_cast<Status>(ek_pool_update(get(), worker, fields, &raw));
    }
    /// Sets or lifts vetoes of an active worker; as ek_pool_veto.
    Status veto(WorkerId worker, std::uint32_t who, bool on) noexcept {
        return static_cast<Status>(ek_pool_veto(get(), worker, who, on));
    }
    /// Takes an active worker out; its requests end as always; as ek_pool_remove.
    Status remove(WorkerId worker) noexcept {
        return static_cast<Status>(ek_pool_remove(get(), worker));
    }
    /// Drops a worker with its counts; as ek_pool_abandon.
    Status abandon(WorkerId worker) noexcept {
        return static_cast<Status>(ek_pool_abandon(get(), worker));
    }
    /// The active worker of a key; as ek_pool_find.
    Result<WorkerId> find(std::uint64_t key) const noexcept {
        WorkerId worker = 0;
        const std::int32_t status = ek_pool_find(get(), key, &worker);
        return detail::result(status, worker);
    }

    /// Replaces the loads of all active workers; as ek_pool_publish. Gives the number of rejected
    /// entries.
    Result<std::size_t> publish(List<Load> loads) noexcept {
        std::size_t rejected = 0;
        const std::int32_t status =
            ek_pool_publish(get(), loads.data(), sizeof(Load), loads.size(), &rejected);
        return detail::result(status, rejected);
    }
    /// Makes a poll of these workers, by default of those that are active at each begin; as
    /// ek_poll_new.
    Result<Poll> poll(List<WorkerId> workers = all_workers) noexcept {
        ek_poll *poll = nullptr;
        const std::int32_t status = ek_poll_new(get(), workers.data(), workers.size(), &poll);
        return detail::result(status, Poll(poll));
    }

    /// Chooses a worker and counts nothing; as ek_pool_pick.
    Result<WorkerId> pick(const Request &request = {}) noexcept {
        const ek_request raw = detail::raw(request);
        WorkerId worker = 0;
        const std::int32_t status = ek_pool_pick(get(), &raw, &worker);
        return detail::result(status, worker);
    }
    /// Chooses a worker and counts the request on it; as ek_pool_dispatch.
    Result<InFlight> dispatch(const Request &request = {}) noexcept {
        const ek_request raw = detail::raw(request);
        Ticket ticket = {};
        return in_flight(ek_pool_dispatch(get(), &raw, &ticket), ticket);
    }
    /// Makes a picker; as ek_picker_new.
    Result<Picker> picker(std::uint64_t seed = 0) noexcept {
        ek_picker *picker = nullptr;
        const std::int32_t status = ek_picker_new(get(), seed, &picker);
        if (status != EK_OK) return static_cast<Status>(status);
        return Picker(picker, get());
    }

    /// Counts a request on a worker that was chosen elsewhere; as ek_pool_begin.
    Result<InFlight> begin(WorkerId worker, std::uint64_t tokens = 0) noexcept {
        Ticket ticket = {};
        return in_flight(ek_pool_begin(get(), worker, tokens, &ticket), ticket);
    }
    /// Ends a request of this worker, for hosts that keep only the worker; as
    /// ek_pool_finish_worker.
    Status finish_worker(WorkerId worker, std::uint64_t tokens = 0) noexcept {
        return static_cast<Status>(ek_pool_finish_worker(get(), worker, tokens));
    }
    /// Takes charge of a ticket of this pool.
    InFlight guard(Ticket ticket) noexcept {
        if (!leases_) return {};
        return InFlight(leases_[detail::thread_number() % lease_count], ticket);
    }

    /// All active and draining workers, in the order of their slots; as ek_pool_stats.
    Result<std::vector<WorkerStats>> stats() const noexcept {
        std::vector<WorkerStats> rows;
        std::size_t count = 0;
        std::int32_t status = ek_pool_stats(get(), nullptr, sizeof(WorkerStats), 0, &count);
        // Workers may be added in between.
        while (status == EK_OK && count > rows.size()) {
            rows.resize(count);
            status = ek_pool_stats(get(), rows.data(), sizeof(WorkerStats), rows.size(), &count);
        }
        rows.resize(count);
        return detail::result(status, std::move(rows));
    }
    /// Sums over the pool; as ek_pool_totals_get.
    Result<Totals> totals() const noexcept {
        Totals totals = {};
        const std::int32_t status = ek_pool_totals_get(get(), &totals, sizeof totals);
        return detail::result(status, totals);
    }

private:
    explicit Pool(ek_pool *pool) noexcept
        : handle_(pool), leases_(new detail::Lease[lease_count]) {
        // Each thread takes one of them.
        for (std::size_t i = 0; i < lease_count; i++) leases_[i] = detail::lease(pool);
    }

    Result<WorkerId> ensure(std::uint64_t key, const ek_worker_config *config) noexcept {
        WorkerId worker = 0;
        const std::int32_t status = ek_pool_ensure(get(), key, config, &worker);
        return detail::result(status, worker);
    }
    Status set_members(List<std::uint64_t> keys, const ek_worker_config *configs) noexcept {
        return static_cast<Status>(
            ek_pool_set_members(get(), keys.data(), configs, sizeof *configs, keys.size()));
    }
    Result<InFlight> in_flight(std::int32_t status, Ticket ticket) noexcept {
        if (status != EK_OK) return static_cast<Status>(status);
        return guard(ticket);
    }

    static constexpr std::size_t lease_count = 16;

    // Unique pointers both, so that they stay together, also where a pool is moved to itself.
    detail::Handle<ek_pool> handle_;
    std::unique_ptr<detail::Lease[]> leases_;
};

/// The host's own object for each worker, in an array by slot: a connection, counters, a name.
///
/// A slot goes to another worker once its last one is gone, so each object is bound to the id of
/// its worker, and other ids don't find it. No slot changes hands while a request is in flight on
/// its worker (unless it is abandoned): what find gives for the worker of an InFlight of yours is
/// there until that ends.
///
/// Any thread may find, also while another one emplaces; one thread at a time emplaces. Add a
/// worker with veto_host, emplace, then lift the veto: then whoever is sent to it finds its object.
template <typename T>
class PerWorker {
public:
    /// For a pool of this capacity.
    explicit PerWorker(std::uint32_t capacity) : slots_(capacity) {}

    /// Gives a worker its object, in the place of the slot's former one. A worker that has one, as
    /// it was revived, keeps it. nullptr for an id that no pool of this capacity gives.
    template <typename... Arguments>
    T *emplace(WorkerId worker, Arguments &&...arguments) {
        const std::size_t index = worker_slot(worker);
        if (worker == 0 || index >= slots_.size()) return nullptr;
        Slot &slot = slots_[index];
        if (slot.worker.load(std::memory_order_relaxed) != worker) {
            slot.worker.store(0, std::memory_order_relaxed);
            slot.object.emplace(std::forward<Arguments>(arguments)...);
            slot.worker.store(worker, std::memory_order_release);
        }
        return &*slot.object;
    }

    /// The object of a worker; nullptr if it has none, or its slot is another's.
    [[nodiscard]] T *find(WorkerId worker) noexcept {
        const std::size_t index = worker_slot(worker);
        if (worker == 0 || index >= slots_.size()) return nullptr;
        Slot &slot = slots_[index];
        if (slot.worker.load(std::memory_order_acquire) != worker) return nullptr;
        return &*slot.object;
    }

private:
    struct Slot {
        std::atomic<WorkerId> worker{0};
        std::optional<T> object;
    };

    std::vector<Slot> slots_;
};

}  // namespace evenkeel

#endif /* EVENKEEL_HPP */

// Checks that say where and why, and end the program.
#ifndef CHECK_HPP
#define CHECK_HPP

#include "evenkeel.hpp"

#include <cstdio>
#include <cstdlib>

inline void check(bool holds, const char *what, const char *file, int line) {
    if (holds) return;
    std::fprintf(stderr, "%s:%d: does not hold: %s\n  last error: %s\n", file, line, what,
                 evenkeel::error_message().c_str());
    std::_Exit(1);
}
#define CHECK(condition) check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
#define OK(call) CHECK((call) == evenkeel::Status::ok)

/// How often a program does its work: as its first argument says, for checkers that slow it down.
inline unsigned rounds(int argc, char **argv, unsigned usual) {
    return argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : usual;
}

inline evenkeel::Pool new_pool(std::uint64_t workers) {
    evenkeel::Pool pool = *evenkeel::Pool::create();
    for (std::uint64_t key = 0; key < workers; key++) CHECK(pool.add(key));
    return pool;
}

inline std::uint64_t in_flight(const evenkeel::Pool &pool) { return pool.totals()->in_flight; }
inline std::uint64_t anomalies(const evenkeel::Pool &pool) { return pool.totals()->anomalies; }

#endif

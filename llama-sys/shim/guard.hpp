// One way out for every shim function: run, and turn what is thrown into a status and a text.
#pragma once

#include "shim.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

// The caller's input is at fault.
struct onebit_invalid : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline char * onebit_copy(const std::string & text) noexcept {
    char * copy = static_cast<char *>(std::malloc(text.size() + 1));
    if (copy) {
        std::memcpy(copy, text.data(), text.size());
        copy[text.size()] = '\0';
    }
    return copy;
}

inline onebit_status onebit_report(onebit_status status, const char * what, char ** err) noexcept {
    if (err) {
        *err = onebit_copy(what);
    }
    return status;
}

template <typename F>
onebit_status onebit_guard(char ** err, F && body) noexcept {
    try {
        body();
        return ONEBIT_OK;
    } catch (const onebit_invalid & e) {
        return onebit_report(ONEBIT_INVALID, e.what(), err);
    } catch (const std::invalid_argument & e) {
        return onebit_report(ONEBIT_INVALID, e.what(), err);
    } catch (const std::bad_alloc &) {
        return onebit_report(ONEBIT_FAILED, "out of memory", err);
    } catch (const std::exception & e) {
        return onebit_report(ONEBIT_FAILED, e.what(), err);
    } catch (...) {
        return onebit_report(ONEBIT_FAILED, "unknown C++ exception", err);
    }
}

// Errors that a user reads, and the small text helpers that build them.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

namespace deepasm {

// Becomes a Python RuntimeError with exactly this text.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A description that no tensor and no GPU can have; a Python ValueError.
struct DescriptionError : Error {
  using Error::Error;
};

inline void append(std::string* text, const std::string& v) { *text += v; }
inline void append(std::string* text, const char* v) { *text += v; }
inline void append(std::string* text, char v) { *text += v; }
template <class T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
void append(std::string* text, T v) {
  *text += std::to_string(v);
}

// Concatenates strings, characters and integers.  No streams: they would raise the libstdc++ that
// the binary needs.
template <class... T>
std::string cat(const T&... parts) {
  std::string text;
  (append(&text, parts), ...);
  return text;
}

template <class... T>
[[noreturn]] void fail(const T&... parts) {
  throw Error(cat(parts...));
}

}  // namespace deepasm

// Process-wide switches, first read from the environment, and the counters that make a fallback
// visible.
#pragma once

#include <atomic>
#include <string>

namespace deepasm {

struct Options {
  std::atomic<int> disable{0};  // 1: every op falls back to torch
  std::atomic<int> tier{0};     // 0: best the device has; 80 or 90: nothing above that tier
  std::atomic<int> max_sms{0};  // 0: all; otherwise an upper bound on the CTAs of a launch
};

Options& options();

// False when there is no option of that name; check_option and set_option also refuse a value out
// of range and say what is allowed in `error`.
bool get_option(const std::string& name, int* value);
bool check_option(const std::string& name, int value, std::string* error);
bool set_option(const std::string& name, int value, std::string* error);

class OpCounter {
 public:
  void launched(int count) { launches_.fetch_add(count, std::memory_order_relaxed); }
  void copied() { copies_.fetch_add(1, std::memory_order_relaxed); }
  void fell_back(const std::string& reason);

  void reset();
  // launches, fallbacks, copies (of an output or a bias that a kernel cannot address in place)
  void read(long long out[3], std::string* last_reason) const;

 private:
  std::atomic<long long> launches_{0}, fallbacks_{0}, copies_{0};
};

OpCounter& gemm_counter();

std::string counters_json();
void reset_counters();

}  // namespace deepasm

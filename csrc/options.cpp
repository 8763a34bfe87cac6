#include "options.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "error.h"
#include "json.h"
#include "kernels.h"

namespace deepasm {
namespace {

// Once per process: each variable is read once.
void warn_ignored(const char* name, const char* text, const char* expected) {
  std::fprintf(stderr, "deepasm_torch: %s=%s is ignored: expected %s\n", name, text, expected);
}

int env_int(const char* name, int fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  long value = std::strtol(text, &end, 10);
  if (end != text && *end == '\0' && value >= 0 && value <= 1 << 20) return static_cast<int>(value);
  warn_ignored(name, text, "a whole number from 0 (no limit) to 1048576");
  return fallback;
}

int env_flag(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return 0;
  return std::strcmp(text, "0") != 0 && std::strcmp(text, "false") != 0;
}

int env_tier() {
  const char* text = std::getenv("DEEPASM_TIER");
  if (text == nullptr || *text == '\0') return 0;
  std::string name(text);
  for (char& c : name) c = 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (name == "sm80" || name == "80") return 80;
  if (name == "sm90" || name == "90") return 90;
  warn_ignored("DEEPASM_TIER", text, "sm80 or sm90; unset, the GPU decides");
  return 0;
}

// One mutex for the text of the last fallback: fallbacks are slow anyway.
std::mutex& reason_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::string& gemm_reason() {
  static std::string reason;
  return reason;
}

}  // namespace

Options& options() {
  static Options instance;
  static const bool initialised = [] {
    instance.disable = env_flag("DEEPASM_DISABLE");
    instance.tier = env_tier();
    instance.max_sms = env_int("DEEPASM_MAX_SMS", 0);
    return true;
  }();
  (void)initialised;
  return instance;
}

bool get_option(const std::string& name, int* value) {
  Options& o = options();
  if (name == "disable") {
    *value = o.disable;
  } else if (name == "tier") {
    *value = o.tier;
  } else if (name == "max_sms") {
    *value = o.max_sms;
  } else {
    return false;
  }
  return true;
}

bool check_option(const std::string& name, int value, std::string* error) {
  if (name == "disable") {
    if (value == 0 || value == 1) return true;
    *error = cat("option disable: got ", value, ", expected 0 or 1");
  } else if (name == "tier") {
    if (value == 0 || value == 80 || value == 90) return true;
    *error = cat("option tier: got ", value, ", expected 0 (automatic), 80 or 90");
  } else if (name == "max_sms") {
    if (value >= 0) return true;
    *error = cat("option max_sms: got ", value, ", expected 0 (all) or a positive count");
  } else {
    *error = cat("no option named '", name, "'; there are disable, tier and max_sms");
  }
  return false;
}

bool set_option(const std::string& name, int value, std::string* error) {
  if (!check_option(name, value, error)) return false;
  Options& o = options();
  (name == "disable" ? o.disable : name == "tier" ? o.tier : o.max_sms) = value;
  return true;
}

void OpCounter::fell_back(const std::string& reason) {
  fallbacks_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(reason_mutex());
  gemm_reason() = reason;
}

void OpCounter::reset() {
  launches_ = fallbacks_ = copies_ = 0;
  std::lock_guard<std::mutex> lock(reason_mutex());
  gemm_reason().clear();
}

void OpCounter::read(long long out[3], std::string* last_reason) const {
  out[0] = launches_;
  out[1] = fallbacks_;
  out[2] = copies_;
  std::lock_guard<std::mutex> lock(reason_mutex());
  *last_reason = gemm_reason();
}

OpCounter& gemm_counter() {
  static OpCounter counter;
  return counter;
}

std::string counters_json() {
  Json json;
  json.begin_object();
  long long counts[3];
  std::string reason;
  gemm_counter().read(counts, &reason);
  json.key("gemm").begin_object();
  json.field("launches", counts[0]);
  json.field("fallbacks", counts[1]);
  json.field("copies", counts[2]);
  json.key("last_fallback");
  if (reason.empty()) {
    json.null();
  } else {
    json.value(reason);
  }
  json.key("kernels").begin_object();
  for (int i = 0; i < kernel_count(); ++i) {
    if (long long launches = kernel_launches(i)) json.field(kernel_info(i).name, launches);
  }
  json.end_object().end_object().end_object();
  return json.text();
}

void reset_counters() {
  gemm_counter().reset();
  reset_kernel_launches();
}

}  // namespace deepasm

// A minimal JSON writer: the module talks to Python in JSON strings.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <type_traits>

namespace deepasm {

class Json {
 public:
  Json& begin_object() { return open('{'); }
  Json& end_object() { return close('}'); }
  Json& begin_list() { return open('['); }
  Json& end_list() { return close(']'); }

  Json& key(const std::string& name) {
    comma();
    quote(name);
    text_ += ':';
    fresh_ = true;
    return *this;
  }

  Json& value(const std::string& v) {
    comma();
    quote(v);
    return *this;
  }
  Json& value(const char* v) { return value(std::string(v)); }
  Json& value(bool v) { return raw(v ? "true" : "false"); }
  Json& null() { return raw("null"); }
  Json& value(double v) {
    if (!std::isfinite(v)) return null();
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.17g", v);
    return raw(buffer);
  }
  template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
  Json& value(T v) {
    return raw(std::to_string(v));
  }

  template <class T>
  Json& field(const std::string& name, const T& v) {
    key(name);
    return value(v);
  }

  template <class T>
  Json& list(const std::string& name, const T* values, size_t count) {
    key(name).begin_list();
    for (size_t i = 0; i < count; ++i) value(values[i]);
    return end_list();
  }

  const std::string& text() const { return text_; }

 private:
  void comma() {
    if (!fresh_) text_ += ',';
    fresh_ = false;
  }
  Json& raw(const std::string& v) {
    comma();
    text_ += v;
    return *this;
  }
  Json& open(char c) {
    comma();
    text_ += c;
    fresh_ = true;
    return *this;
  }
  Json& close(char c) {
    text_ += c;
    fresh_ = false;
    return *this;
  }
  void quote(const std::string& v) {
    text_ += '"';
    for (unsigned char c : v) {
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += static_cast<char>(c);
      } else if (c < 0x20) {
        char buffer[8];
        std::snprintf(buffer, sizeof buffer, "\\u%04x", c);
        text_ += buffer;
      } else {
        text_ += static_cast<char>(c);
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool fresh_ = true;  // nothing written yet at this level, so no comma before the next value
};

}  // namespace deepasm

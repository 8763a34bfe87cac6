// The Python module deepasm_torch._C: registration of the ops, and a few functions that answer in
// JSON.  Limited API only, so that one binary serves every CPython from 3.10 on.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <vector>

#include "error.h"
#include "gemm.h"
#include "gemm_explain.h"
#include "inflate.h"
#include "json.h"
#include "kernels.h"
#include "options.h"

namespace {

using deepasm::Error;

PyObject* to_python(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

PyObject* raise(PyObject* type, const std::string& text) {
  PyErr_SetString(type, text.c_str());
  return nullptr;
}

// Runs `body`, turning C++ exceptions into Python's.
template <class F>
PyObject* guarded(F&& body) {
  try {
    return body();
  } catch (const deepasm::DescriptionError& error) {
    return raise(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    return PyErr_Occurred() ? nullptr : raise(PyExc_RuntimeError, error.what());
  }
}

struct PythonError : Error {
  PythonError() : Error("a Python exception is set") {}
};

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

PyObject* kernels(PyObject*, PyObject*) {
  return guarded([] { return to_python(deepasm::kernels_json()); });
}

PyObject* build_info(PyObject*, PyObject*) {
  return guarded([] { return to_python(deepasm::build_json()); });
}

PyObject* device_record(PyObject*, PyObject* args) {
  int index = 0;
  if (!PyArg_ParseTuple(args, "i:device_record", &index)) return nullptr;
  return guarded([&] {
    std::string text;
    try {
      text = deepasm::device_json(index);
    } catch (const Error& error) {
      deepasm::Json json;
      text = json.begin_object().field("error", error.what()).end_object().text();
    }
    return to_python(text);
  });
}

PyObject* warmup(PyObject*, PyObject* args) {
  int index = 0;
  if (!PyArg_ParseTuple(args, "i:warmup", &index)) return nullptr;
  return guarded([&]() -> PyObject* {
    {
      WithoutGil unlocked;  // the driver may compile PTX for seconds
      deepasm::warm_up(index);
    }
    Py_INCREF(Py_None);
    return Py_None;
  });
}

PyObject* set_option(PyObject*, PyObject* args) {
  const char* name = nullptr;
  int value = 0;
  if (!PyArg_ParseTuple(args, "si:set_option", &name, &value)) return nullptr;
  std::string error;
  if (!deepasm::set_option(name, value, &error)) return raise(PyExc_ValueError, error);
  Py_INCREF(Py_None);
  return Py_None;
}

PyObject* get_option(PyObject*, PyObject* args) {
  const char* name = nullptr;
  if (!PyArg_ParseTuple(args, "s:get_option", &name)) return nullptr;
  int value = 0;
  if (!deepasm::get_option(name, &value)) {
    return raise(PyExc_ValueError,
                 deepasm::cat("no option named '", name, "'; there are disable, tier and max_sms"));
  }
  return PyLong_FromLong(value);
}

PyObject* counters(PyObject*, PyObject*) {
  return guarded([] { return to_python(deepasm::counters_json()); });
}

PyObject* reset_counters(PyObject*, PyObject*) {
  deepasm::reset_counters();
  Py_INCREF(Py_None);
  return Py_None;
}

std::vector<int64_t> read_ints(PyObject* object) {
  Py_ssize_t size = PySequence_Size(object);
  if (size < 0) throw PythonError();
  std::vector<int64_t> values;
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* item = PySequence_GetItem(object, i);
    if (item == nullptr) throw PythonError();
    values.push_back(PyLong_AsLongLong(item));
    Py_DECREF(item);
    if (PyErr_Occurred()) throw PythonError();
  }
  return values;
}

// None, or (dtype, address, sizes, strides).
deepasm::TensorSpec read_tensor(PyObject* object) {
  deepasm::TensorSpec spec;
  if (object == Py_None) return spec;
  spec.given = true;
  unsigned long long address = 0;
  PyObject *sizes = nullptr, *strides = nullptr;
  if (!PyArg_ParseTuple(object, "iKOO", &spec.dtype, &address, &sizes, &strides)) {
    throw PythonError();
  }
  spec.address = address;
  spec.sizes = read_ints(sizes);
  spec.strides = read_ints(strides);
  if (spec.sizes.size() != spec.strides.size() || spec.dtype < 0 || spec.dtype > 3) {
    throw Error("plan_gemm: a tensor needs as many strides as sizes, and a dtype from 0 to 3");
  }
  return spec;
}

PyObject* plan_gemm(PyObject*, PyObject* args) {
  PyObject *a, *b, *bias, *c, *out;
  deepasm::PlanQuery query;
  deepasm::PlanTarget& target = query.target;
  int disabled = 0;
  if (!PyArg_ParseTuple(args, "OOOOO(ddii)(iiiiiiii)i:plan_gemm", &a, &b, &bias, &c, &out,
                        &query.alpha, &query.beta, &query.activation, &query.out_dtype,
                        &target.cc_major, &target.cc_minor, &target.sms, &target.smem_per_block,
                        &target.device, &target.tier_limit, &target.max_sms, &disabled,
                        &query.variant)) {
    return nullptr;
  }
  return guarded([&] {
    if (target.device < 0 || target.device >= deepasm::kMaxDevices) target.device = -1;
    query.disabled = disabled != 0;
    query.a = read_tensor(a), query.b = read_tensor(b);
    query.bias = read_tensor(bias), query.c = read_tensor(c), query.out = read_tensor(out);
    if (!query.a.given || !query.b.given) throw Error("plan_gemm: a and b are required");
    return to_python(deepasm::plan_json(query));
  });
}

PyObject* image(PyObject*, PyObject* args) {
  int index = 0;
  if (!PyArg_ParseTuple(args, "i:image", &index)) return nullptr;
  return guarded([&] {
    std::string bytes = deepasm::unpack_image(index);
    return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  });
}

PyObject* inflate(PyObject*, PyObject* args) {
  const char* packed = nullptr;
  Py_ssize_t packed_size = 0, raw_size = 0;
  if (!PyArg_ParseTuple(args, "y#n:inflate", &packed, &packed_size, &raw_size)) return nullptr;
  return guarded([&]() -> PyObject* {
    std::string raw(static_cast<size_t>(raw_size < 0 ? 0 : raw_size), '\0');
    if (!deepasm::inflate_raw(reinterpret_cast<const uint8_t*>(packed),
                              static_cast<size_t>(packed_size), reinterpret_cast<uint8_t*>(&raw[0]),
                              raw.size())) {
      return raise(PyExc_ValueError, "inflate: damaged stream, or not that many bytes");
    }
    return PyBytes_FromStringAndSize(raw.data(), static_cast<Py_ssize_t>(raw.size()));
  });
}

PyMethodDef kMethods[] = {
    {"kernels", kernels, METH_NOARGS, "The kernel table, as JSON."},
    {"build_info", build_info, METH_NOARGS, "How many kernels, by which ptxas, as JSON."},
    {"plan_gemm", plan_gemm, METH_VARARGS, "Plan a described GEMM; see deepasm_torch.planning."},
    {"device_record", device_record, METH_VARARGS, "What is known about a CUDA device, as JSON."},
    {"warmup", warmup, METH_VARARGS, "Load every kernel that runs on a CUDA device."},
    {"set_option", set_option, METH_VARARGS, "Set disable, tier or max_sms."},
    {"get_option", get_option, METH_VARARGS, "Read disable, tier or max_sms."},
    {"counters", counters, METH_NOARGS, "Launches and fallbacks by op, as JSON."},
    {"reset_counters", reset_counters, METH_NOARGS, "Set all counters to 0."},
    {"image", image, METH_VARARGS, "The unpacked bytes of an embedded image."},
    {"inflate", inflate, METH_VARARGS, "Decode a raw DEFLATE stream of known size."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "deepasm_torch._C",
                       "Native part of deepasm_torch.",
                       -1,
                       kMethods,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__C() {
  static bool registered = false;
  if (!registered) {
    try {
      deepasm::register_ops();
    } catch (const std::exception& error) {
      return raise(PyExc_ImportError, error.what());
    }
    registered = true;
  }
  return PyModule_Create(&kModule);
}

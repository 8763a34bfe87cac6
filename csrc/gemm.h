// The gemm ops: definitions, registration.
#pragma once

namespace deepasm {

// Defines the ops of namespace deepasm and registers their C++ kernels.  Throws Error with torch's
// text when a registration fails.
void register_ops();

}  // namespace deepasm

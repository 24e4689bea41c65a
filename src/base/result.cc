#include "base/result.h"

namespace base {

const char* code_name(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kNotFound:
      return "not_found";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kTooLarge:
      return "too_large";
    case Code::kOverloaded:
      return "overloaded";
    case Code::kCancelled:
      return "cancelled";
    case Code::kIo:
      return "io";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace base

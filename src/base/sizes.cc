#include "base/sizes.h"

#include <array>
#include <charconv>
#include <cmath>

namespace base {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 5> kUnits{{{"TiB", 1099511627776.0},
                                      {"GiB", 1073741824.0},
                                      {"MiB", 1048576.0},
                                      {"KiB", 1024.0},
                                      {"B", 1.0}}};
// 2^60: far above any machine, far below overflow
constexpr double kBytesMax = 1152921504606846976.0;

}  // namespace

Result<int64_t> parse_bytes(std::string_view text) {
  auto bad = [&] {
    return error(Code::kInvalidArgument,
                 "'{}' is no size: expected a number with KiB, MiB or GiB, such as 24GiB", text);
  };
  double number = 0;
  auto [end, ec] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (ec != std::errc()) return bad();
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  double scale = unit.empty() ? 1.0 : 0.0;
  for (const Unit& known : kUnits) {
    if (unit == known.name) scale = known.bytes;
  }
  if (scale == 0.0 || !(number >= 0.0) || number * scale > kBytesMax) return bad();
  return static_cast<int64_t>(std::llround(number * scale));
}

std::string format_bytes(int64_t bytes) {
  for (const Unit& unit : kUnits) {
    double number = static_cast<double>(bytes) / unit.bytes;
    if (number < 1.0 && unit.bytes > 1.0) continue;
    if (unit.bytes == 1.0) return fmt::format("{} B", bytes);
    return number < 10    ? fmt::format("{:.2f} {}", number, unit.name)
           : number < 100 ? fmt::format("{:.1f} {}", number, unit.name)
                          : fmt::format("{:.0f} {}", number, unit.name);
  }
  return "0 B";
}

}  // namespace base

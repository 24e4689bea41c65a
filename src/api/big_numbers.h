// Numbers of JSON that no integer or double of 64 bits holds: valid, but simdjson refuses the text.
#pragma once

#include <string>
#include <string_view>

namespace api {

// The text with those as doubles: integers outside of 64 bits rounded, what is beyond the range of
// a double made the largest there is. All else, text that is no JSON too, stays as it is. Linear.
std::string with_numbers_rounded(std::string_view json);

}  // namespace api

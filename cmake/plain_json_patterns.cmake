# cmake -DINPUT=... -DOUTPUT=... -P plain_json_patterns.cmake: a copy of XGrammar's json_schema_converter.cc that warns where a string's
# `pattern` could put quotes, backslashes or control characters into JSON as they are (src/grammar/schema_check.h): it leaves them out
# of the expressions that become automata, but not of the others. So it is with its own expressions for formats, where they are changed:
# json-pointer took quotes, backslashes and line breaks, and an email's quoted part "\a". And dates like 2023-02-30 and addresses like
# 010.0.0.1 went through, which those who check the format refuse.
include(${CMAKE_CURRENT_LIST_DIR}/change_source.cmake)
change("#include \"json_schema_converter.h\"\n"
  "#include \"json_schema_converter.h\"\n#include <string_view>\nnamespace grammar { bool is_plain_in_json(std::string_view expression); }\n")
change("  // Keep regex conversion independent. Only the uncommon fallback path"
  "  if (json_string && !grammar::is_plain_in_json(regex))\n    XGRAMMAR_LOG(WARNING) << \"a pattern that may match what JSON escapes: \" << regex;\n  // Keep regex conversion independent. Only the uncommon fallback path")
change([==["\\\\\"(\\\\[\\x20-\\x7E]|[\\x20\\x21\\x23-\\x5B\\x5D-\\x7E])*\\\\\""]==] [==["\\\\\"[\\x20\\x21\\x23-\\x5B\\x5D-\\x7E]*\\\\\""]==])
change([==[([\\x00-\\x2E]|[\\x30-\\x7D]|]==] [==[([\\x20\\x21\\x23-\\x2E]|[\\x30-\\x5B\\x5D-\\x7D]|]==])
change([==[2[0-4]\\d|[0-1]?\\d?\\d)"]==] [==[2[0-4]\\d|1\\d\\d|[1-9]?\\d)"]==])
set(month_and_day "(0[13578]|1[02])-(0[1-9]|[12]\\\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\\\d|30)|02-(0[1-9]|1\\\\d|2[0-8])")
set(leap_year "(\\\\d\\\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)")
change([==[(\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[1-2]\\d|3[01]))]==] "(\\\\d{4}-(${month_and_day})|${leap_year}-02-29)")
# Alternatives of oneOf are mostly references: what they lead to shows that they exclude each other (schema_check.cc has walked them).
change([==[  if (!TryProvePairwiseDisjointOneOf(options)) {]==] [==[  picojson::array resolved = options;
  for (picojson::value& option : resolved) {
    constexpr int kHopsMax = 32;
    for (int hops = 0; hops < kHopsMax && option.is<picojson::object>() && option.contains("$ref"); ++hops) {
      const picojson::value uri = option.get("$ref");
      if (!uri.is<std::string>() || uri.get<std::string>().rfind("#/", 0) != 0) break;
      const std::string path = uri.get<std::string>() + "/";
      const picojson::value* target = &root_schema_;
      for (std::size_t begin = 2, end; target != nullptr && (end = path.find('/', begin)) != path.npos; begin = end + 1) {
        const std::string part = path.substr(begin, end - begin);
        target = target->is<picojson::object>() && target->contains(part) ? &target->get(part) : nullptr;
      }
      if (target == nullptr) break;
      const picojson::value next = *target;
      option = next;
    }
  }
  if (!TryProvePairwiseDisjointOneOf(resolved)) {]==])
file(WRITE ${OUTPUT} "${text}")

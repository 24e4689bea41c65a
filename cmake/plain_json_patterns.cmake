# cmake -DINPUT=... -DOUTPUT=... -P plain_json_patterns.cmake: a copy of XGrammar's json_schema_converter.cc that warns where a string's
# `pattern` could put quotes, backslashes or control characters into JSON as they are (src/grammar/schema_check.h): it leaves them out
# of the expressions that become automata, but not of the others.
include(${CMAKE_CURRENT_LIST_DIR}/change_source.cmake)
change("#include \"json_schema_converter.h\"\n"
  "#include \"json_schema_converter.h\"\n#include <string_view>\nnamespace grammar { bool is_plain_in_json(std::string_view expression); }\n")
change("  // Keep regex conversion independent. Only the uncommon fallback path"
  "  if (json_string && !grammar::is_plain_in_json(regex))\n    XGRAMMAR_LOG(WARNING) << \"a pattern that may match what JSON escapes: \" << regex;\n  // Keep regex conversion independent. Only the uncommon fallback path")
file(WRITE ${OUTPUT} "${text}")

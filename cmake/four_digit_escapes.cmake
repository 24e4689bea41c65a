# cmake -DINPUT=... -DOUTPUT=... -P four_digit_escapes.cmake: a copy of XGrammar's support/encoding.h that writes no \x: it reads \x with
# as many hex digits as follow, so that the expression [\u00e9a] became the class of one character, U+0E9A.
include(${CMAKE_CURRENT_LIST_DIR}/change_source.cmake)
change("codepoint <= 0xFF ? 'x' : codepoint <= 0xFFFF ? 'u' : 'U'" "codepoint <= 0xFFFF ? 'u' : 'U'")
change("codepoint <= 0xFF ? 2 : codepoint <= 0xFFFF ? 4 : 8" "codepoint <= 0xFFFF ? 4 : 8")
change("#include \"logging.h\"" "#include \"support/logging.h\"")
file(WRITE ${OUTPUT} "${text}")

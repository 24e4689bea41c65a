# cmake -DINPUT=... -DOUTPUT=... -P count_parser_work.cmake: a copy of XGrammar's earley_parser.cc that counts the states it looks at
# (src/grammar/work_limit.h): nothing else interrupts it, and a grammar can make one token cost it minutes.
include(${CMAKE_CURRENT_LIST_DIR}/change_source.cmake)
macro(insert_behind place addition)
  change("${place}" "${place}${addition}")
endmacro()
insert_behind("#include \"earley_parser.h\"\n" "#include <cstddef>\nnamespace grammar { void count_library_work(std::size_t states); }\n")
insert_behind("const auto& parent_states_map = rule_id_to_completable_states_[state.rule_start_pos];\n"
  "grammar::count_library_work(parent_states_map.size() + 1);\n")
insert_behind("const auto& latest_states = scanable_state_history_[scanable_state_history_.size() - 1];\n"
  "grammar::count_library_work(latest_states.size() + 1);\n")
insert_behind("const auto in_vec = [&](const ParserState& state_) {\n"
  "grammar::count_library_work(rule_id_to_completable_states_.Back().size());\n")
insert_behind("while (!tmp_process_state_queue_.empty()) {\n" "grammar::count_library_work(10);\n")
file(WRITE ${OUTPUT} "${text}")

# For scripts that make a changed copy of a library's source (-DINPUT=... -DOUTPUT=...): read it, change(FROM TO) what must be there,
# file(WRITE ${OUTPUT} "${text}").
file(READ ${INPUT} text)
function(change from to)
  string(FIND "${text}" "${from}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${INPUT} does not have: ${from}")
  endif()
  string(REPLACE "${from}" "${to}" text "${text}")
  set(text "${text}" PARENT_SCOPE)
endfunction()

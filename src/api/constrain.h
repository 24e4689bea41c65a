// From what a request says of its output to the constraints of its sequences. Thread: a text
// worker, since grammars are compiled here.
#pragma once

#include "api/fields.h"
#include "api/prepare.h"

namespace api {

// Fills `prepared.constraints`, one for each choice in order, when the request asks for it. Errors:
// what is not a grammar, cannot be enforced or exceeds a limit, by the name of the field.
Failure add_constraints(const ServedModel& model, Prepared& prepared);

}  // namespace api

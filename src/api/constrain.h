// From what a request says of its output to the constraints of its sequences. Thread: any; a text
// worker, but compile_constraints(), which may wait for a minute.
#pragma once

#include <stop_token>

#include "api/fields.h"
#include "api/prepare.h"

namespace api {

// When the request asks for it, fills `prepared.constraints`, one for each choice in order, if the
// grammar is kept, and `prepared.uncompiled` if it is not.
Failure add_constraints(const ServedModel& model, Prepared& prepared);

// The constraints of what is not compiled yet. REQUIRES: prepared.uncompiled. Errors: what is not a
// grammar, cannot be enforced or exceeds a limit, by the name of the field; any, after `stop`.
Failure compile_constraints(const ServedModel& model, Prepared& prepared,
                            const std::stop_token& stop);

}  // namespace api

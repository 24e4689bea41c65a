// The evaluator: a walk over the tree, with one chain of scopes as Jinja's frames have it. A loop's
// body, a macro, a call or filter block and a block set have a scope of their own; if has none. A
// macro sees the variables around its definition as they are when it is called.
#include "text/jinja_eval.h"

#include <nlohmann/json.hpp>

#include "text/jinja_evaluator.h"
#include "text/jinja_from_json.h"

namespace text::jinja {

using base::Code;

Evaluator::Evaluator(const Program& program, const TemplateLimits& limits, int64_t now_unix_s)
    : program_(program), limits_(limits) {
  runtime_.now_unix_s = now_unix_s;
  runtime_.meter.live_bytes_max = limits.memory_bytes;
  runtime_.meter.work_max = limits.work;
  runtime_.meter.iterations_max = limits.loop_iterations;
  runtime_.meter.value_depth_max = limits.depth;
  for (size_t id = 0; id < program.names.size(); ++id) {
    const std::string& name = program.names[id];
    if (name == "loop") loop_name_ = static_cast<NameId>(id);
    if (name == "varargs") varargs_name_ = static_cast<NameId>(id);
    if (name == "kwargs") kwargs_name_ = static_cast<NameId>(id);
    if (name == "caller") caller_name_ = static_cast<NameId>(id);
  }
}

Evaluator::~Evaluator() {
  // Namespaces may hold each other and scopes the macros defined in them: empty all before any
  // dies.
  for (const auto& object : runtime_.namespaces) static_cast<Namespace&>(*object).items.clear();
  for (const auto& scope : captured_) scope->values.clear();
}

base::Error Evaluator::located(int32_t line, base::Error error) {
  if (error.code == Code::kTooLarge) return error;
  return base::error(error.code, "template line {}: {}", line, error.message);
}

base::Result<std::string> Evaluator::run(const nlohmann::ordered_json& context) {
  if (!context.is_object())
    return base::error(Code::kInvalidArgument, "the context of a chat template must be an object");
  auto root = std::make_shared<Scope>();
  for (size_t id = 0; id < program_.names.size(); ++id) {
    const auto found = context.find(program_.names[id]);
    if (found == context.end()) continue;
    ASSIGN_OR_RETURN(Value value, from_json(runtime_.meter, *found, 1));
    root->values.emplace_back(static_cast<NameId>(id), std::move(value));
  }
  scope_ = std::make_shared<Scope>();
  scope_->parent = std::move(root);
  std::string output;
  out_ = &output;
  ASSIGN_OR_RETURN([[maybe_unused]] const Flow flow, run_body(program_.body));
  return output;
}

Value* Evaluator::find_value(Scope* scope, NameId name) {
  for (; scope != nullptr; scope = scope->parent.get()) {
    runtime_.meter.work += static_cast<int64_t>(scope->values.size());
    for (auto& [id, value] : scope->values) {
      if (id == name) return &value;
    }
  }
  return nullptr;
}

base::Result<void> Evaluator::emit(std::string_view text) {
  RETURN_IF_ERROR(spend(runtime_.meter, static_cast<int64_t>(text.size())));
  if (static_cast<int64_t>(out_->size() + text.size()) > limits_.output_bytes) {
    return base::error(Code::kTooLarge, "the chat template's output exceeds {} bytes",
                       limits_.output_bytes);
  }
  runtime_.meter.live_bytes += static_cast<int64_t>(text.size());
  if (runtime_.meter.live_bytes > runtime_.meter.live_bytes_max) {
    return base::error(Code::kTooLarge, "the chat template exceeds its limit of memory");
  }
  out_->append(text);
  return {};
}

base::Result<Evaluator::Flow> Evaluator::run_body(const Body& body) {
  const Level level(*this);
  RETURN_IF_ERROR(level.check());
  for (const auto& stmt : body) {
    ASSIGN_OR_RETURN(const Flow flow, run_stmt(*stmt));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

base::Result<Evaluator::Flow> Evaluator::run_scoped(const Body& body) {
  const ScopeGuard guard(*this, scope_);
  return run_body(body);
}

// Runs `body` with its output going to a string of its own.
base::Result<Value> Evaluator::capture(const Body& body, Flow* flow) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  auto result = run_body(body);
  out_ = outer;
  runtime_.meter.live_bytes -= static_cast<int64_t>(text.size());
  ASSIGN_OR_RETURN(*flow, std::move(result));
  return make_string(&runtime_.meter, std::move(text));
}

base::Result<void> Evaluator::print(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value value, eval(expr));
  if (value.is_string()) return emit(value.text());
  auto text = to_text(runtime_.meter, value);
  if (!text.ok()) return located(expr.line, std::move(text).error());
  return emit(*text);
}

base::Result<Evaluator::Flow> Evaluator::run_stmt(const Stmt& stmt) {
  switch (stmt.type) {
    case StmtType::kText:
      RETURN_IF_ERROR(emit(stmt.text));
      return Flow::kNext;
    case StmtType::kOutput:
      RETURN_IF_ERROR(print(*stmt.expr));
      return Flow::kNext;
    case StmtType::kIf:
      return run_if(stmt);
    case StmtType::kFor:
      return run_for(stmt);
    case StmtType::kSet: {
      ASSIGN_OR_RETURN(Value value, eval(*stmt.expr));
      RETURN_IF_ERROR(assign(*stmt.target, std::move(value)));
      return Flow::kNext;
    }
    case StmtType::kSetBlock:
    case StmtType::kFilter:
      return run_captured(stmt);
    case StmtType::kMacro: {
      ASSIGN_OR_RETURN(Value macro, make_macro(stmt));
      set_name(stmt.name, std::move(macro));
      return Flow::kNext;
    }
    case StmtType::kCall: {
      ASSIGN_OR_RETURN(Value caller, make_macro(stmt));
      ASSIGN_OR_RETURN(const Value value, call(*stmt.expr, &caller));
      ASSIGN_OR_RETURN(const std::string text, to_text(runtime_.meter, value));
      RETURN_IF_ERROR(emit(text));
      return Flow::kNext;
    }
    case StmtType::kWith:
      return run_with(stmt);
    case StmtType::kScope:
      return run_scoped(stmt.body);
    case StmtType::kBreak:
      return Flow::kBreak;
    case StmtType::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

base::Result<Evaluator::Flow> Evaluator::run_if(const Stmt& first) {
  const Stmt* stmt = &first;
  for (;;) {
    ASSIGN_OR_RETURN(const Value condition, eval(*stmt->expr));
    if (truth(condition)) return run_body(stmt->body);
    const bool chained = stmt->orelse.size() == 1 && stmt->orelse[0]->type == StmtType::kIf;
    if (!chained) return run_body(stmt->orelse);
    stmt = stmt->orelse[0].get();
  }
}

// A block set or a filter block.
base::Result<Evaluator::Flow> Evaluator::run_captured(const Stmt& stmt) {
  Flow flow = Flow::kNext;
  Value value;
  {
    const ScopeGuard guard(*this, scope_);
    ASSIGN_OR_RETURN(value, capture(stmt.body, &flow));
  }
  if (flow != Flow::kNext) return flow;
  if (stmt.expr) {
    const Value* const outer = std::exchange(block_text_, &value);
    auto filtered = eval(*stmt.expr);
    block_text_ = outer;
    ASSIGN_OR_RETURN(value, std::move(filtered));
  }
  if (stmt.type == StmtType::kSetBlock) {
    RETURN_IF_ERROR(assign(*stmt.target, std::move(value)));
    return Flow::kNext;
  }
  ASSIGN_OR_RETURN(const std::string text, to_text(runtime_.meter, value));
  RETURN_IF_ERROR(emit(text));
  return Flow::kNext;
}

base::Result<Evaluator::Flow> Evaluator::run_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const Param& param : stmt.params) {
    ASSIGN_OR_RETURN(Value value, eval(*param.value));
    values.push_back(std::move(value));
  }
  const ScopeGuard guard(*this, scope_);
  for (size_t i = 0; i < values.size(); ++i) {
    RETURN_IF_ERROR(assign(*stmt.params[i].target, std::move(values[i])));
  }
  return run_body(stmt.body);
}

base::Result<Evaluator::Flow> Evaluator::run_for(const Stmt& stmt) {
  ASSIGN_OR_RETURN(const Value source, eval(*stmt.expr));
  return run_loop(stmt, source, 1);
}

base::Result<std::vector<Value>> Evaluator::loop_items(const Stmt& stmt, const Value& source) {
  auto items = iterate(runtime_.meter, source);
  if (!items.ok()) return located(stmt.line, std::move(items).error());
  if (!stmt.test) return items;
  std::vector<Value> kept;
  for (Value& item : *items) {
    const ScopeGuard guard(*this, scope_);
    RETURN_IF_ERROR(count_iteration());
    RETURN_IF_ERROR(assign(*stmt.target, item));
    ASSIGN_OR_RETURN(const Value passes, eval(*stmt.test));
    if (truth(passes)) kept.push_back(std::move(item));
  }
  return kept;
}

base::Result<void> Evaluator::count_iteration() {
  if (++runtime_.meter.iterations <= runtime_.meter.iterations_max)
    return spend(runtime_.meter, 64);
  return base::error(Code::kTooLarge, "the chat template's loops exceed {} iterations",
                     limits_.loop_iterations);
}

base::Result<Evaluator::Flow> Evaluator::run_loop(const Stmt& stmt, const Value& source,
                                                  int32_t depth) {
  ASSIGN_OR_RETURN(std::vector<Value> items, loop_items(stmt, source));
  if (items.empty()) return run_scoped(stmt.orelse);
  ASSIGN_OR_RETURN(const Value held, make_list(&runtime_.meter, std::move(items)));
  auto loop = std::make_shared<Loop>();
  loop->held = held.shared();
  loop->items = &held.list().items;
  loop->level = depth;
  loop->depth = held.depth() + 1;
  loop->node = stmt.recursive ? &stmt : nullptr;
  loop->scope = scope_;
  RETURN_IF_ERROR(charge(&runtime_.meter, *loop, 0));
  const NameId loop_name = loop_name_;
  for (; loop->index < static_cast<int64_t>(loop->items->size()); ++loop->index) {
    RETURN_IF_ERROR(count_iteration());
    const ScopeGuard guard(*this, scope_);
    if (loop_name >= 0) set_name(loop_name, Value(Kind::kLoop, loop));
    RETURN_IF_ERROR(assign(*stmt.target, (*loop->items)[static_cast<size_t>(loop->index)]));
    ASSIGN_OR_RETURN(const Flow flow, run_body(stmt.body));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Evaluator::set_name(NameId name, Value value) {
  for (auto& [id, old] : scope_->values) {
    if (id == name) {
      old = std::move(value);
      return;
    }
  }
  scope_->values.emplace_back(name, std::move(value));
}

base::Result<void> Evaluator::assign(const Expr& target, Value value) {
  if (target.type == ExprType::kName) {
    set_name(target.name, std::move(value));
    return {};
  }
  if (target.type == ExprType::kNamespaceTarget) return assign_attribute(target, std::move(value));
  auto items = iterate(runtime_.meter, value);
  if (!items.ok()) return located(target.line, std::move(items).error());
  if (items->size() != target.args.size()) {
    return base::error(Code::kInvalidArgument,
                       "template line {}: expected {} values to unpack, got {}", target.line,
                       target.args.size(), items->size());
  }
  for (size_t i = 0; i < items->size(); ++i)
    RETURN_IF_ERROR(assign(*target.args[i], std::move((*items)[i])));
  return {};
}

base::Result<void> Evaluator::assign_attribute(const Expr& target, Value value) {
  const Value* found = find_value(scope_.get(), target.name);
  if (found == nullptr || !found->is(Kind::kNamespace)) {
    return base::error(Code::kInvalidArgument,
                       "template line {}: '{}' is no namespace, so '{}' cannot be set", target.line,
                       program_.names[static_cast<size_t>(target.name)], target.text);
  }
  auto& items = found->names().items;
  RETURN_IF_ERROR(spend(runtime_.meter, static_cast<int64_t>(items.size())));
  for (auto& [name, old] : items) {
    if (name == target.text) {
      old = std::move(value);
      return {};
    }
  }
  items.emplace_back(target.text, std::move(value));
  return {};
}

base::Result<std::string> evaluate(const Program& program, const nlohmann::ordered_json& context,
                                   int64_t now_unix_s, const TemplateLimits& limits) {
  return Evaluator(program, limits, now_unix_s).run(context);
}

}  // namespace text::jinja

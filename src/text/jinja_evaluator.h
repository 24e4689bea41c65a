// The evaluator's state, shared by its statements (jinja_eval.cc) and expressions
// (jinja_eval_expr.cc).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/jinja_ast.h"

namespace text::jinja {

struct Scope : std::enable_shared_from_this<Scope> {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<NameId, Value>> values;  // few: searched one by one
};

class Evaluator {
 public:
  Evaluator(const Program& program, const TemplateLimits& limits, int64_t now_unix_s);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  base::Result<std::string> run(const nlohmann::ordered_json& context);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  // One more level of nesting while alive.
  class Level {
   public:
    explicit Level(Evaluator& evaluator) : evaluator_(evaluator) { ++evaluator_.depth_; }
    ~Level() { --evaluator_.depth_; }
    base::Result<void> check() const;

   private:
    Evaluator& evaluator_;
  };

  // A new scope inside `parent` while alive.
  class ScopeGuard {
   public:
    ScopeGuard(Evaluator& evaluator, std::shared_ptr<Scope> parent)
        : evaluator_(evaluator), outer_(std::move(evaluator.scope_)) {
      evaluator_.scope_ = std::make_shared<Scope>();
      evaluator_.scope_->parent = std::move(parent);
    }
    ~ScopeGuard() { evaluator_.scope_ = std::move(outer_); }
    ScopeGuard(const ScopeGuard&) = delete;
    ScopeGuard& operator=(const ScopeGuard&) = delete;

   private:
    Evaluator& evaluator_;
    std::shared_ptr<Scope> outer_;
  };

  static base::Error located(int32_t line, base::Error error);

  base::Result<Flow> run_body(const Body& body);
  base::Result<Flow> run_scoped(const Body& body);
  base::Result<Flow> run_stmt(const Stmt& stmt);
  base::Result<Flow> run_if(const Stmt& first);
  base::Result<Flow> run_for(const Stmt& stmt);
  base::Result<Flow> run_loop(const Stmt& stmt, const Value& source, int32_t depth);
  base::Result<Flow> run_captured(const Stmt& stmt);
  base::Result<Flow> run_with(const Stmt& stmt);
  base::Result<Value> capture(const Body& body, Flow* flow);
  base::Result<void> print(const Expr& expr);
  base::Result<void> emit(std::string_view text);
  base::Result<std::vector<Value>> loop_items(const Stmt& stmt, const Value& source);
  base::Result<void> count_iteration();

  base::Result<void> assign(const Expr& target, Value value);
  base::Result<void> assign_attribute(const Expr& target, Value value);
  void set_name(NameId name, Value value);
  Value* find_value(Scope* scope, NameId name);

  base::Result<Value> eval(const Expr& expr);
  base::Result<Value> eval_kind(const Expr& expr);
  base::Result<Value> eval_name(const Expr& expr);
  base::Result<Value> eval_compare(const Expr& expr);
  base::Result<Value> eval_concat(const Expr& expr);
  base::Result<Value> eval_sequence(const Expr& expr);
  base::Result<Value> eval_dict(const Expr& expr);
  base::Result<Value> eval_slice(const Expr& expr);
  base::Result<Value> eval_builtin(const Expr& expr);
  base::Result<Args> eval_args(const CallArgs* call);

  // Calls what `expr` (a kCall) names; `caller` is the call block around it, or null.
  base::Result<Value> call(const Expr& expr, const Value* caller);
  base::Result<Value> make_macro(const Stmt& stmt);
  base::Result<Value> call_macro(const Callable& macro, Args args);
  base::Result<void> bind_params(const Stmt& macro, Args args);
  base::Result<Value> call_loop(const Loop& loop, const Args& args);

  Runtime runtime_;  // first: every value refers to its meter
  const Program& program_;
  const TemplateLimits& limits_;
  NameId loop_name_ = -1, varargs_name_ = -1, kwargs_name_ = -1, caller_name_ = -1;
  int32_t depth_ = 0;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;
  const Value* block_text_ = nullptr;             // what the filters of a block apply to
  std::vector<std::shared_ptr<Scope>> captured_;  // scopes that macros refer to
};

}  // namespace text::jinja

// The parsed template. Immutable after parsing; every tree is at most TemplateLimits::depth high.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja_builtins.h"
#include "text/jinja_value.h"

namespace text::jinja {

using NameId = int32_t;  // index into Program::names

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;
struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

enum class ExprType : uint8_t {
  kConst,
  kName,
  kAttribute,  // args[0].text
  kItem,       // args[0][args[1]]
  kSlice,      // args[0][args[1]:args[2]:args[3]], null where absent
  kCall,       // args[0](call)
  kFilter,     // args[0] | builtin(call); args[0] null: the text of the block
  kTest,       // args[0] is builtin(call)
  kList,
  kTuple,
  kDict,     // args: key, value, key, value ...
  kUnary,    // op: + - !
  kBinary,   // op
  kConcat,   // ~ of all args
  kCompare,  // args[0] ops[0] args[1] ops[1] ...
  kAnd,
  kOr,
  kIfElse,           // args[0] if args[1] else args[2] (null where absent)
  kNamespaceTarget,  // name.text, only as the target of set
};

enum class Op : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kNot,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,
};

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;       // *expr
  ExprPtr star_star;  // **expr
};

struct Expr {
  ExprType type = ExprType::kConst;
  Op op = Op::kAdd;
  int32_t line = 0;
  int32_t height = 1;
  NameId name = -1;
  std::string text;
  Value value;
  std::vector<ExprPtr> args;
  std::vector<Op> ops;
  std::unique_ptr<CallArgs> call;
  Builtin builtin = nullptr;  // null: no such filter or test, an error when it is reached
};

enum class StmtType : uint8_t {
  kText,
  kOutput,    // expr
  kFor,       // target in expr if test: body else orelse
  kIf,        // expr: body else orelse
  kSet,       // target = expr
  kSetBlock,  // target = body, through the filter chain expr (may be null)
  kMacro,     // name, params, body
  kCall,      // expr is a kCall; body is its caller, with params
  kFilter,    // expr is a filter chain
  kWith,      // params with defaults: body
  kScope,     // body in a scope of its own
  kBreak,
  kContinue,
};

struct Param {
  ExprPtr target;  // of a macro: a name
  ExprPtr value;   // default, may be null
};

struct Stmt {
  StmtType type = StmtType::kText;
  int32_t line = 0;
  NameId name = -1;
  std::string text;
  ExprPtr target, expr, test;
  Body body, orelse;
  std::vector<Param> params;
  bool recursive = false;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Program {
  Body body;
  std::vector<std::string> names;
};

}  // namespace text::jinja

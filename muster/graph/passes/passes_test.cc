#include "muster/graph/passes/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/graph/checker.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> ops_of(const Program& program) {
  std::vector<std::string> names;
  for (const Instruction& instruction : program.instructions) names.push_back(program.op_of(instruction).name);
  return names;
}

TEST(EliminateDead, RemovesWhatNobodyUses) {
  Builder b;
  ValueId x = b.argument();
  b.relu(b.relu(x));
  b.constant(1);
  Program program = b.finish({b.add(x, x)});

  EXPECT_EQ(eliminate_dead(program), 2);

  EXPECT_THAT(ops_of(program), ElementsAre("aten::add.Tensor"));
  EXPECT_THAT(program.constants, IsEmpty());
  EXPECT_EQ(program.arguments.size(), 1u);
  check(program);
}

TEST(EliminateDead, KeepsWritesToArgumentsAndVariables) {
  Builder b;
  ValueId x = b.argument(), w = b.variable("w");
  b.add_(b.op("aten::t", {ref(w)}), b.relu(x));
  b.add_(x, x);
  Program program = b.finish({});

  EXPECT_EQ(eliminate_dead(program), 0);
}

TEST(EliminateDead, KeepsAWriteOnlyWhileSomebodyReadsItLater) {
  Builder b;
  ValueId x = b.argument();
  ValueId buffer = b.op("aten::mul.Scalar", {ref(x), number(2)});
  ValueId view = b.op("aten::t", {ref(buffer)});
  b.add_(view, x);  // seen by the next one, through another name
  ValueId seen = b.add(buffer, x);
  b.add_(buffer, x);  // seen by nobody
  Program program = b.finish({seen});

  EXPECT_EQ(eliminate_dead(program), 1);

  EXPECT_THAT(ops_of(program), ElementsAre("aten::mul.Scalar", "aten::t", "aten::add_.Tensor", "aten::add.Tensor"));
}

TEST(EliminateDead, KeepsAssertions) {
  Builder b;
  b.instruction("aten::_assert_async", {ref(b.relu(b.argument()))}, {});
  Program program = b.finish({});

  EXPECT_EQ(eliminate_dead(program), 0);
}

TEST(EliminateDead, KeepsARandomOpWhileAnotherOneFollows) {
  auto program_with = [](bool last_is_used) {
    Builder b;
    ValueId x = b.argument();
    const std::vector<Argument> more(5, Argument{None{}});
    auto draw = [&] {
      std::vector<Argument> arguments{ref(x)};
      arguments.insert(arguments.end(), more.begin(), more.end());
      return b.op("aten::rand_like", arguments);
    };
    draw();
    ValueId last = draw();
    return b.finish({last_is_used ? last : x});
  };
  Program used = program_with(true), unused = program_with(false);

  EXPECT_EQ(eliminate_dead(used), 0);
  EXPECT_EQ(eliminate_dead(unused), 2);
}

TEST(EliminateDead, ForgetsWhatALoopNeedNotSave) {
  Program program = loop_program();

  EXPECT_EQ(eliminate_dead(program), 0);

  EXPECT_THAT(program.instructions[0].results[1], ElementsAre(kNoValue));
  EXPECT_NE(program.instructions[0].results[0][0], kNoValue);
  check(program);
}

TEST(EliminateDead, RemovesInputsThatNoBodyReads) {
  Program program = loop_program();
  program.bodies[0].instructions.erase(program.bodies[0].instructions.begin());  // the one that writes the counter

  eliminate_dead(program);

  EXPECT_EQ(program.instructions[0].arguments[2], refs({program.arguments[1].value}));
  EXPECT_EQ(program.bodies[0].arguments.size(), 3u);
  EXPECT_EQ(program.variables.size(), 1u);
  check(program);
}

TEST(EliminateDead, RemovesALoopThatChangesNothingAndItsBody) {
  Program program = loop_program();
  program.bodies[0].instructions.erase(program.bodies[0].instructions.begin());
  program.outputs = {program.arguments[0].value};

  EXPECT_EQ(eliminate_dead(program), 1);

  EXPECT_THAT(program.bodies, IsEmpty());
}

TEST(EliminateDead, CleansBodies) {
  Program program = loop_program();
  Builder body("body");
  body.program = std::move(program.bodies[0]);
  body.relu(1);
  program.bodies[0] = std::move(body.program);

  EXPECT_EQ(eliminate_dead(program), 1);

  EXPECT_THAT(ops_of(program.bodies[0]), ElementsAre("aten::add_.Tensor", "aten::add.Tensor"));
}

TEST(CancelViews, UsesWhatATransposeOfATransposeShows) {
  Builder b;
  ValueId x = b.argument();
  ValueId twice = b.op("aten::t", {ref(b.op("aten::t", {ref(x)}))});
  Program program = b.finish({b.relu(twice)});

  EXPECT_EQ(cancel_views(program), 1);
  eliminate_dead(program);

  EXPECT_THAT(ops_of(program), ElementsAre("aten::relu"));
  EXPECT_EQ(std::get<ValueRef>(program.instructions[0].arguments[0].value).id, x);
  check(program);
}

TEST(CancelViews, KeepsATransposeThatIsUsed) {
  Builder b;
  ValueId x = b.argument();
  ValueId once = b.op("aten::t", {ref(x)});
  ValueId twice = b.op("aten::t", {ref(once)});
  Program program = b.finish({b.relu(once), b.relu(twice)});

  cancel_views(program);
  eliminate_dead(program);

  EXPECT_THAT(ops_of(program), ElementsAre("aten::t", "aten::relu", "aten::relu"));
}

TEST(CancelViews, LeavesOutputsThatAreViewsAlone) {
  Builder b;
  ValueId x = b.argument();
  ValueId twice = b.op("aten::t", {ref(b.op("aten::t", {ref(x)}))});
  Program program = b.finish({twice});

  cancel_views(program);

  EXPECT_EQ(program.outputs[0], twice);
  check(program);
}

TEST(CancelViews, LeavesAProgramAloneThatTransposesInPlace) {
  Builder b;
  ValueId x = b.argument();
  ValueId twice = b.op("aten::t", {ref(b.op("aten::t", {ref(x)}))});
  b.op("aten::t_", {ref(x)});
  Program program = b.finish({b.relu(twice)});

  EXPECT_EQ(cancel_views(program), 0);
}

TEST(CancelViews, TakesAnOpForInPlaceByItsSchemaAlone) {
  Builder b;
  ValueId x = b.argument();
  ValueId shifted = b.op("aten::__lshift__.Scalar", {ref(x), integer(1)});
  ValueId written = b.add_(shifted, x);
  Program program = b.finish({b.relu(written)});

  cancel_views(program);

  EXPECT_EQ(std::get<ValueRef>(program.instructions[1].arguments[0].value).id, shifted);
  EXPECT_EQ(std::get<ValueRef>(program.instructions[2].arguments[0].value).id, shifted)
      << "add_ returns what it wrote to";
}

TEST(MergeRepeated, ComputesEqualThingsOnce) {
  Builder b;
  ValueId x = b.argument();
  ValueId first = b.add(x, x), second = b.add(x, x);
  Program program = b.finish({b.add(b.relu(first), b.relu(second))});

  EXPECT_EQ(merge_repeated(program), 2);

  EXPECT_THAT(ops_of(program), ElementsAre("aten::add.Tensor", "aten::relu", "aten::add.Tensor"));
  check(program);
}

TEST(MergeRepeated, SeesAWriteInBetween) {
  Builder b;
  ValueId x = b.argument(), w = b.variable("w");
  ValueId before = b.relu(b.op("aten::t", {ref(w)}));
  b.add_(w, x);
  ValueId after = b.relu(b.op("aten::t", {ref(w)}));
  Program program = b.finish({b.add(before, after)});

  EXPECT_EQ(merge_repeated(program), 1) << "the views are one, what they show is not";

  EXPECT_THAT(ops_of(program),
              ElementsAre("aten::t", "aten::relu", "aten::add_.Tensor", "aten::relu", "aten::add.Tensor"));
}

TEST(MergeRepeated, LeavesViewsAloneWhereAShapeChangesInPlace) {
  Builder b;
  ValueId w = b.variable("w");
  ValueId before = b.op("aten::t", {ref(w)});
  b.op("aten::t_", {ref(w)});
  ValueId after = b.op("aten::t", {ref(w)});
  Program program = b.finish({b.add(before, after)});

  EXPECT_EQ(merge_repeated(program), 0);
}

TEST(MergeRepeated, LeavesResultsAloneThatAreWritten) {
  Builder b;
  ValueId x = b.argument();
  ValueId first = b.relu(x), second = b.relu(x);
  b.add_(first, x);
  Program program = b.finish({b.add(first, second)});

  EXPECT_EQ(merge_repeated(program), 0);
}

TEST(MergeRepeated, LeavesTwoOutputsTwoTensors) {
  Builder b;
  ValueId x = b.argument();
  ValueId first = b.relu(x), second = b.relu(x), third = b.relu(x);
  Program program = b.finish({first, second, b.add(third, x)});

  EXPECT_EQ(merge_repeated(program), 1);

  EXPECT_NE(program.outputs[0], program.outputs[1]);
  check(program);
}

TEST(MergeRepeated, TellsDevicesRandomOpsAndSignedZerosApart) {
  Builder b;
  ValueId x = b.argument();
  b.relu(x, "/device:CPU:0");
  b.relu(x, "/device:CPU:1");
  b.op("aten::mul.Scalar", {ref(x), number(0.0)});
  b.op("aten::mul.Scalar", {ref(x), number(-0.0)});
  b.op("aten::mul.Scalar", {ref(x), integer(0)});
  const std::vector<Argument> like{ref(x), {None{}}, {None{}}, {None{}}, {None{}}, {None{}}};
  b.op("aten::rand_like", like);
  b.op("aten::rand_like", like);
  Program program = b.finish({});

  EXPECT_EQ(merge_repeated(program), 0);
}

TEST(MergeRepeated, MakesEqualConstantsOne) {
  Builder b;
  ValueId x = b.argument();
  ValueId first = b.op("aten::mul.Tensor", {ref(x), ref(b.constant(2))});
  ValueId second = b.op("aten::mul.Tensor", {ref(x), ref(b.constant(2))});
  b.constant(3);
  b.constant(2, false);
  Program program = b.finish({b.add(first, second)});

  EXPECT_EQ(merge_repeated(program), 1);

  EXPECT_EQ(program.constants.size(), 3u);
  check(program);
}

TEST(MergeRepeated, KnowsInABodyThatItsCallerGaveItOneTensorTwice) {
  Builder inside("then");
  ValueId a = inside.argument(), c = inside.argument();
  ValueId before = inside.relu(a);
  inside.add_(c, c);
  Program body = inside.finish({inside.add(before, inside.relu(a))});
  auto program_with = [&](bool one_tensor) {
    Builder b;
    ValueId p = b.argument({DType::kBool, {}}), x = b.argument(), y = b.argument();
    int32_t first = b.body(body), second = b.body(body);
    size_t cond = b.instruction(kCond.name, {ref(p), refs({x, one_tensor ? x : y})}, {1}, "", {first, second});
    ValueId result = b.program.instructions[cond].results[0][0];
    return b.finish({result});
  };
  Program one = program_with(true), two = program_with(false);

  EXPECT_EQ(merge_repeated(one), 0);
  EXPECT_EQ(merge_repeated(two), 2);
}

// Claims that every result is eight bytes.
std::optional<std::vector<Constant>> eight_bytes(const Program&, const Instruction& instruction) {
  std::vector<Constant> constants;
  for (const auto& result : instruction.results) {
    for (size_t i = 0; i < result.size(); ++i) {
      constants.push_back({kNoValue, {DType::kDouble, {}}, std::make_shared<std::string>(8, '\0'), false});
    }
  }
  return constants;
}

TEST(FoldConstants, RunsWhatDependsOnConstantsOnly) {
  Builder b;
  ValueId x = b.argument();
  ValueId folded = b.relu(b.add(b.constant(1), b.constant(2)));
  Program program = b.finish({b.add(x, folded)});

  EXPECT_EQ(fold_constants(program, eight_bytes, 65536), 2);

  EXPECT_THAT(ops_of(program), ElementsAre("aten::add.Tensor"));
  EXPECT_EQ(program.constants.size(), 4u);
  check(program);
}

TEST(FoldConstants, LeavesAloneWhatItMustNotRun) {
  Builder b;
  ValueId x = b.argument(), c = b.constant(1);
  auto make = [&](const std::string& name, std::vector<int64_t> size, size_t extra) {
    std::vector<Argument> arguments{integers(size)};
    arguments.insert(arguments.end(), extra, Argument{None{}});
    return b.op(name, arguments);
  };
  ValueId unset = make("aten::empty.memory_format", {2}, 5);
  ValueId large = make("aten::zeros", {int64_t{1} << 40, int64_t{1} << 40}, 4);
  ValueId written = make("aten::zeros", {2}, 4);
  b.add_(written, x);
  ValueId returned = make("aten::zeros", {2}, 4);
  ValueId random = b.op("aten::rand_like", {ref(c), {None{}}, {None{}}, {None{}}, {None{}}, {None{}}});
  ValueId sum = b.add(b.add(unset, large), b.add(written, random));
  Program program = b.finish({returned, b.add(sum, x)});

  EXPECT_EQ(fold_constants(program, eight_bytes, 65536), 0);
}

TEST(FoldConstants, StopsAtItsSize) {
  Builder b;
  ValueId x = b.argument();
  Program program = b.finish({b.add(x, b.relu(b.constant(1)))});

  EXPECT_EQ(fold_constants(program, eight_bytes, 7), 0);
  EXPECT_EQ(fold_constants(program, [](auto&&...) { return std::nullopt; }, 65536), 0);
  EXPECT_EQ(fold_constants(program, nullptr, 65536), 0);
  EXPECT_EQ(fold_constants(program, eight_bytes, 8), 1);
}

TEST(FuseUpdates, MakesOneForeachOfTheUpdatesOfSeveralVariables) {
  Builder b;
  ValueId x = b.argument(), v = b.variable("v"), w = b.variable("w");
  ValueId updated = b.add_(v, x);
  ValueId gradient = b.relu(x);
  b.add_(w, gradient);
  Program program = b.finish({b.relu(updated), updated});

  EXPECT_EQ(fuse_updates(program, schema_of), 1);

  EXPECT_THAT(ops_of(program), ElementsAre("aten::relu", "aten::_foreach_add_.List", "aten::relu"));
  const Instruction& fused = program.instructions[1];
  EXPECT_EQ(fused.arguments[0], refs({v, w}));
  EXPECT_EQ(fused.arguments[1], refs({x, gradient}));
  EXPECT_EQ(fused.arguments[2], integer(1));
  EXPECT_EQ(program.instructions[2].arguments[0], ref(v));
  EXPECT_EQ(program.outputs[1], v);
  check(program);
}

TEST(FuseUpdates, DoesNotMoveAnUpdatePastAReaderOrAWriter) {
  Builder reader;
  ValueId x = reader.argument(), v = reader.variable("v"), w = reader.variable("w");
  reader.add_(v, x);
  ValueId seen = reader.relu(v);
  reader.add_(w, x);
  Program reads = reader.finish({seen});
  Builder writer;
  ValueId y = writer.argument(), g = writer.relu(y), p = writer.variable("p"), q = writer.variable("q");
  writer.add_(p, g);
  writer.op("aten::mul_.Scalar", {ref(g), number(2)});
  writer.add_(q, g);
  Program writes = writer.finish({});

  EXPECT_EQ(fuse_updates(reads, schema_of), 0);
  EXPECT_EQ(fuse_updates(writes, schema_of), 0);
}

TEST(FuseUpdates, KeepsApartWhatIsNotTheSameRule) {
  Builder b;
  ValueId x = b.argument(), v = b.variable("v", "/job:ps/task:0"), w = b.variable("w", "/job:ps/task:1");
  ValueId p = b.variable("p"), q = b.variable("q"), r = b.variable("r");
  b.add_(v, x);
  b.add_(w, x);                                                             // another place
  b.op("aten::add_.Tensor", {ref(p), ref(x), number(1)});                   // another alpha
  b.op("aten::add_.Tensor", {ref(q), ref(x), number(1)}, "/device:CPU:1");  // another device
  b.op("aten::sub_.Tensor", {ref(r), ref(x), number(1)});                   // another op
  b.add_(b.relu(x), x);                                                     // no variable
  Program program = b.finish({});

  EXPECT_EQ(fuse_updates(program, schema_of), 0);
}

TEST(FuseUpdates, DoesNotUpdateOneVariableTwiceInOneOp) {
  Builder b;
  ValueId x = b.argument(), v = b.variable("v"), w = b.variable("w");
  b.add_(v, x);
  b.add_(w, x);
  b.add_(v, x);
  b.add_(w, v);
  Program program = b.finish({});

  EXPECT_EQ(fuse_updates(program, schema_of), 1);

  EXPECT_THAT(ops_of(program), ElementsAre("aten::_foreach_add_.List", "aten::add_.Tensor", "aten::add_.Tensor"));
}

TEST(FuseUpdates, FusesMultiplicationsByANumber) {
  Builder b;
  ValueId v = b.variable("v"), w = b.variable("w");
  b.op("aten::mul_.Scalar", {ref(v), number(0.9)});
  b.op("aten::mul_.Scalar", {ref(w), number(0.9)});
  Program program = b.finish({});

  EXPECT_EQ(fuse_updates(program, schema_of), 1);

  EXPECT_THAT(ops_of(program), ElementsAre("aten::_foreach_mul_.Scalar"));
  EXPECT_EQ(program.instructions[0].arguments.size(), 2u);
  check(program);
}

TEST(FuseUpdates, ChangesNothingWithoutTheForeachOp) {
  Builder b;
  ValueId x = b.argument(), v = b.variable("v"), w = b.variable("w");
  b.add_(v, x);
  b.add_(w, x);
  Program program = b.finish({});

  EXPECT_EQ(fuse_updates(program, [](const std::string&) { return std::nullopt; }), 0);
  EXPECT_EQ(program.instructions.size(), 2u);
}

TEST(FuseUpdates, FusesUpdatesOfVariablesWithWhatIsKeptBesideThem) {
  Builder b;
  ValueId x = b.argument(), y = b.argument(), rate = b.argument({DType::kDouble, {}});
  ValueId v = b.variable("v"), w = b.variable("w"), u = b.variable("u");
  ValueId of_v = b.variable("v/momentum"), of_w = b.variable("w/momentum"), of_u = b.variable("u/momentum");
  auto update = [&](ValueId variable, ValueId gradient, ValueId momentum, double factor) {
    return b.op("muster_step::momentum_",
                {ref(variable), ref(gradient), ref(momentum), ref(rate), number(factor), number(0), {false}});
  };
  ValueId updated = update(v, x, of_v, 0.9);
  update(u, x, of_u, 0.5);
  update(w, y, of_w, 0.9);
  Program program = b.finish({updated});

  EXPECT_EQ(fuse_updates(program, schema_of), 1);

  EXPECT_THAT(ops_of(program), ElementsAre("muster_step::momentum_", "muster_step::momentum_all_"));
  EXPECT_EQ(program.instructions[1].arguments,
            (std::vector<Argument>{
                refs({v, w}), refs({x, y}), refs({of_v, of_w}), ref(rate), number(0.9), number(0), {false}}));
  EXPECT_EQ(program.outputs[0], v);
  check(program);
}

TEST(FuseUpdates, DoesNotMoveAnUpdatePastAReaderOfItsSlot) {
  Builder b;
  ValueId x = b.argument(), rate = b.argument({DType::kDouble, {}});
  ValueId v = b.variable("v"), w = b.variable("w"), of_v = b.variable("v/momentum"), of_w = b.variable("w/momentum");
  auto update = [&](ValueId variable, ValueId momentum) {
    b.op("muster_step::momentum_", {ref(variable), ref(x), ref(momentum), ref(rate), number(0.9), number(0), {false}});
  };
  update(v, of_v);
  ValueId seen = b.relu(of_v);
  update(w, of_w);
  Program program = b.finish({seen});

  EXPECT_EQ(fuse_updates(program, schema_of), 0);
}

TEST(FuseUpdates, FusesInABodyOnlyVariablesOfOnePlace) {
  auto program_with = [](const std::string& other_place) {
    Builder body("body");
    body.argument({DType::kLong, {}});
    ValueId g = body.argument(), a = body.argument(), c = body.argument();
    body.add_(a, g);
    body.add_(c, g);
    Program inside = body.finish({});
    Builder b;
    ValueId x = b.argument(), v = b.variable("v"), w = b.variable("w", other_place);
    int32_t index = b.body(inside);
    b.instruction(kLoop.name, {integer(2), refs({}), refs({x, v, w})}, {0, 0, 1}, "", {index});
    return b.finish({});
  };
  Program one = program_with(""), two = program_with("/job:ps/task:1");

  EXPECT_EQ(fuse_updates(one, schema_of), 1);
  EXPECT_EQ(fuse_updates(two, schema_of), 0);
  check(one);
}

TEST(ContractUpdates, PutsTheRateIntoTheUpdate) {
  Builder b;
  ValueId g = b.argument(), w = b.variable("w"), v = b.variable("v");
  b.op("aten::sub_.Tensor", {ref(w), ref(b.op("aten::mul.Tensor", {ref(g), ref(b.constant(0.1))})), integer(1)});
  b.op("aten::sub_.Tensor", {ref(v), ref(b.op("aten::mul.Scalar", {ref(g), integer(2)})), integer(1)});
  Program program = b.finish({});

  EXPECT_EQ(contract_updates(program, schema_of), 2);

  EXPECT_THAT(ops_of(program), ElementsAre("aten::add_.Tensor", "aten::add_.Tensor"));
  EXPECT_EQ(program.instructions[0].arguments, (std::vector<Argument>{ref(w), ref(g), number(-0.1)}));
  EXPECT_EQ(program.instructions[1].arguments, (std::vector<Argument>{ref(v), ref(g), integer(-2)}));
  check(program);
}

TEST(ContractUpdates, LeavesAProductThatSomebodyElseUsesOrWhoseFactorChanges) {
  Builder b;
  ValueId g = b.relu(b.argument()), w = b.variable("w");
  ValueId used_twice = b.op("aten::mul.Scalar", {ref(g), number(0.1)});
  b.op("aten::sub_.Tensor", {ref(w), ref(used_twice), integer(1)});
  ValueId stale = b.op("aten::mul.Scalar", {ref(g), number(0.2)});
  b.add_(g, g);
  b.op("aten::sub_.Tensor", {ref(w), ref(stale), integer(1)});
  b.op("aten::sub_.Tensor", {ref(w), ref(b.op("aten::mul.Tensor", {ref(g), ref(g)})), integer(1)});
  Program program = b.finish({used_twice});

  EXPECT_EQ(contract_updates(program, schema_of), 0);
}

TEST(Optimize, TakesNoOpForWhatItsNameSays) {
  for (const char* schema : {"aten::add_.Tensor() -> ()", "aten::add_.Tensor(Tensor self) -> Tensor[]",
                             "aten::add_.Tensor(Tensor(a!) self, Tensor other, Scalar alpha) -> ()"}) {
    Builder b;
    ValueId v = b.variable("v"), w = b.variable("w");
    b.program.ops.push_back({"aten::add_.Tensor", schema});
    const size_t arguments = schema[18] == ')' ? 0 : schema[29] == ')' ? 1 : 3;
    for (ValueId variable : {v, w}) {
      std::vector<Argument> all{ref(variable), ref(b.constant(1)), integer(1)};
      all.resize(arguments);
      Instruction instruction{.arguments = all};
      if (arguments == 1) instruction.results = {{}};
      b.program.instructions.push_back(instruction);
    }
    Program program = b.finish({});
    check(program);

    PassReport report = optimize(program, {.contract = true}, nullptr, schema_of);

    EXPECT_EQ(report.fused + report.contracted, 0);
    check(program);
  }
}

TEST(Optimize, RunsEachPassUnlessItIsSwitchedOff) {
  auto make = [] {
    Builder b;
    ValueId x = b.argument(), v = b.variable("v"), w = b.variable("w");
    b.relu(x);                                       // dead
    ValueId rate = b.relu(b.constant(1));            // folded
    ValueId g = b.add(x, rate), h = b.add(x, rate);  // repeated
    auto step = [&](ValueId variable, ValueId gradient) {
      ValueId product = b.op("aten::mul.Scalar", {ref(gradient), number(variable)});
      b.op("aten::sub_.Tensor", {ref(variable), ref(product), integer(1)});
    };
    step(v, g);
    step(w, h);
    return b.finish({});
  };
  Program all = make(), none = make(), contracted = make();

  PassReport report = optimize(all, {}, eight_bytes, schema_of);
  PassReport nothing = optimize(none, {.dead = false, .views = false, .repeated = false, .fold = false, .fuse = false},
                                eight_bytes, schema_of);
  PassReport both = optimize(contracted, {.contract = true}, eight_bytes, schema_of);

  EXPECT_EQ(report.to_string(), "1 dead, 0 views, 0 pooled, 1 repeated, 1 folded, 1 fused, 0 contracted, 0 early");
  EXPECT_EQ(nothing, PassReport{});
  EXPECT_EQ(none.instructions.size(), make().instructions.size());
  EXPECT_EQ(both.contracted, 2);
  check(all);
  check(contracted);
}

}  // namespace
}  // namespace muster

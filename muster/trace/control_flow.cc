#include "muster/trace/control_flow.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "muster/base/status.h"
#include "muster/graph/aliases.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_catalog.h"
#include "muster/runtime/rows/row_ops.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/tracer/dispatcher_hook.h"
#include "muster/trace/tracer/tracer.h"

namespace muster::control_flow_internal {
namespace {

// New tensors with the elements of `tensors`, known to nobody.
Tensors fresh(const Tensors& tensors) {
  Untraced untraced;
  PlainTensors plain;
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone(at::MemoryFormat::Contiguous));
  return copies;
}

Tensors append(Tensors first, const Tensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Tensors in_usual_order(const Tensors& tensors) {
  Tensors ordered;
  for (const at::Tensor& tensor : tensors) ordered.push_back(tensor.contiguous());
  return ordered;
}

// Lets the body return what it returns in the usual order of memory. Whatever comes after was traced for that, but
// other branches and trips may return another one.
void return_in_usual_order(TracedBody& body) {
  for (size_t i = 0; i < body.outputs.size(); ++i) {
    if (body.outputs[i].is_contiguous()) continue;
    Program& program = body.program;
    const ValueId copy = program.new_value();
    program.instructions.push_back(
        {.op = program.intern_op("aten::clone", *schema_of("aten::clone")),
         .device = program.intern_device(""),
         .arguments = {{ValueRef{program.outputs[i]}}, {static_cast<int64_t>(at::MemoryFormat::Contiguous)}},
         .results = {{copy}}});
    program.outputs[i] = copy;
  }
}

Tensors fresh_zeros_like(const Tensors& tensors) {
  Untraced untraced;
  PlainTensors plain;
  Tensors zeros;
  for (const at::Tensor& tensor : tensors) zeros.push_back(at::zeros(tensor.sizes(), tensor.options()));
  return zeros;
}

Argument list_of(Tracer& tracer, const Tensors& tensors) {
  ArgumentList list;
  for (const at::Tensor& tensor : tensors) list.push_back({ValueRef{tracer.value_of(tensor)}});
  return {std::move(list)};
}

void check_alike(const char* what, const Tensors& expected, const Tensors& got) {
  if (expected.size() != got.size()) {
    throw invalid_argument(what, ": returns ", got.size(), " tensors, expected ", expected.size());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (spec_of(expected[i]) != spec_of(got[i])) {
      throw invalid_argument(what, ": tensor ", i, " is ", spec_of(got[i]).to_string(), ", expected ",
                             spec_of(expected[i]).to_string(), "; shapes and types must stay the same");
    }
  }
}

// The bodies that are traced while it lives are run by the replicas for which a predicate holds, and by no others. What
// is around the replicas is run for all.
class RunBy {
 public:
  RunBy(Tracer& tracer, const at::Tensor& predicate)
      : tracer_(tracer),
        before_(tracer.bodies_run_alike(ReplicaContext::current() == nullptr || tracer.known_alike(predicate))) {}
  ~RunBy() { tracer_.bodies_run_alike(before_); }
  RunBy(const RunBy&) = delete;
  RunBy& operator=(const RunBy&) = delete;

 private:
  Tracer& tracer_;
  const bool before_;
};

void check_predicate(const char* what, const at::Tensor& predicate) {
  if (!predicate.defined() || predicate.numel() != 1) {
    throw invalid_argument(what, ": the predicate must have one element, but it is ",
                           predicate.defined() ? spec_of(predicate).to_string() : "undefined");
  }
}

// Brings two bodies to one list of captures, so that they can be called with the same inputs. `own` arguments come
// first.
Tensors share_captures(TracedBody& a, TracedBody& b, size_t own) {
  auto same = [](const at::Tensor& x, const at::Tensor& y) {
    return x.is_same(y) || (x.has_storage() && y.has_storage() && x.is_alias_of(y) && x.sizes() == y.sizes() &&
                            x.strides() == y.strides() && x.storage_offset() == y.storage_offset());
  };
  Tensors all = a.captures;
  for (const at::Tensor& capture : b.captures) {
    if (std::none_of(all.begin(), all.end(), [&](const at::Tensor& known) { return same(known, capture); })) {
      all.push_back(capture);
    }
  }
  for (TracedBody* body : {&a, &b}) {
    std::vector<ProgramArgument> arguments(body->program.arguments.begin(), body->program.arguments.begin() + own);
    for (const at::Tensor& capture : all) {
      size_t i = 0;
      while (i < body->captures.size() && !same(body->captures[i], capture)) ++i;
      if (i < body->captures.size()) {
        arguments.push_back(body->program.arguments[own + i]);
      } else {
        arguments.push_back({body->program.new_value(), spec_of(capture), 0});
      }
    }
    body->program.arguments = std::move(arguments);
    body->captures = all;
  }
  return all;
}

bool writes_from(const Program& program, size_t own) {
  const Aliases aliases(program);
  for (size_t i = own; i < program.arguments.size(); ++i) {
    if (aliases.written(aliases.group(program.arguments[i].value))) return true;
  }
  return false;
}

// A state that is not in the usual order of memory is a copy in the loop: writes to it would be lost outside.
void check_state_is_written_where_it_is(const Program& trip, const Tensors& state) {
  const Aliases aliases(trip);
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i].is_contiguous() || !aliases.written(aliases.group(trip.arguments[i + 1].value))) continue;
    throw invalid_argument(
        "the body of the loop writes in place to tensor ", i, " of its state (", spec_of(state[i]).to_string(),
        "), which begins as a tensor that is not contiguous; let it begin with a clone() or contiguous()");
  }
}

void add_differentiable(Tensors& all, const Tensors& more) {
  for (const at::Tensor& tensor : more) {
    if (std::none_of(all.begin(), all.end(), [&](const at::Tensor& known) { return known.is_same(tensor); })) {
      all.push_back(tensor);
    }
  }
}

// Takes out what stands for tables whose rows are made on demand: nothing is as large as they are.
Tensors take_tables_on_demand(Tracer& tracer, Tensors& tensors) {
  Tensors taken;
  std::erase_if(tensors, [&](const at::Tensor& tensor) {
    const auto variable = tracer.variable_of(tensor);
    if (variable == nullptr || !variable->on_demand) return false;
    taken.push_back(tensor);
    return true;
  });
  return taken;
}

// While it lives, the tensors are leaves: a gradient by one of them has no part that goes through another one.
class AsLeaves {
 public:
  explicit AsLeaves(const Tensors& tensors) : tensors_(tensors) {
    for (const at::Tensor& tensor : tensors) {
      auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
      made_by_.push_back(std::exchange(meta->grad_fn_, nullptr));
      required_.push_back(std::exchange(meta->requires_grad_, true));
      output_numbers_.push_back(std::exchange(meta->output_nr_, 0));
    }
  }
  ~AsLeaves() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      auto* meta = torch::autograd::impl::get_autograd_meta(tensors_[i]);
      meta->grad_fn_ = std::move(made_by_[i]);
      meta->requires_grad_ = required_[i];
      meta->output_nr_ = output_numbers_[i];
    }
  }
  AsLeaves(const AsLeaves&) = delete;
  AsLeaves& operator=(const AsLeaves&) = delete;

 private:
  const Tensors tensors_;
  std::vector<decltype(torch::autograd::AutogradMeta::grad_fn_)> made_by_;
  std::vector<bool> required_;
  std::vector<uint32_t> output_numbers_;
};

// The gradient by the rows that a lookup has found, as one by the whole part of the table that `memory` stands for;
// undefined if it is no part of that table.
at::Tensor by_whole_part(Tracer& tracer, const RowLookup& lookup, const at::Tensor& gradient,
                         const at::Tensor& memory) {
  const std::vector<Variable>& shards = lookup.table->shards;
  for (size_t i = 0; i < lookup.part_ids.size(); ++i) {
    if (!tracer.stand_in(shards.empty() ? lookup.table : shards[i].state()).is_same(memory)) continue;
    const Tensors sums = rows::sum(gradient, lookup.places, lookup.part_ids);
    return at::zeros_like(memory).index_add_(0, lookup.part_ids[i], sums[i]);
  }
  return {};
}

bool has_gradients(const at::Tensor& tensor) {
  return c10::isFloatingType(tensor.scalar_type()) || tensor.is_complex();
}

// d outputs / d inputs, weighted; zeros where nothing depends on an input. What was looked up since the current trace
// began are rows of an input, if that stands for their table.
Tensors gradients_of(const Tensors& outputs, const Tensors& inputs, const Tensors& weights) {
  Tensors from, weight;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    from.push_back(outputs[i]);
    weight.push_back(weights[i]);
  }
  Tensors by;
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) by.push_back(input);
  }
  Tracer& tracer = *Tracer::current();
  const std::vector<RowLookup> lookups = tracer.lookups;
  for (const RowLookup& lookup : lookups) by.push_back(lookup.leaf);
  Tensors found(by.size());
  if (!from.empty() && !by.empty()) {
    found =
        torch::autograd::grad(from, by, weight, /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/true);
  }
  c10::AutoGradMode no_gradients(false);
  Tensors result;
  size_t next = 0;
  for (const at::Tensor& input : inputs) {
    at::Tensor gradient = input.requires_grad() ? found[next++] : at::Tensor();
    result.push_back(gradient.defined() ? gradient : at::zeros_like(input));
  }
  for (size_t i = 0; i < lookups.size(); ++i) {
    if (!found[next + i].defined()) continue;
    for (size_t j = 0; j < inputs.size(); ++j) {
      const at::Tensor more = by_whole_part(tracer, lookups[i], found[next + i], inputs[j]);
      if (more.defined()) result[j] = result[j].add(more);
    }
  }
  return result;
}

// The autograd node of a control-flow instruction. Its gradient was traced together with it (the functions may be gone
// when the backward pass comes) and is recorded only if the backward pass asks for it.
class ControlFlowNode : public torch::autograd::Node {
 public:
  using Emit = std::function<Tensors(Tracer& tracer, const Tensors& gradients)>;

  // `without` are inputs whose gradients nobody can have: asking for one is an error. The last edges lead to them.
  static void attach(const Tensors& outputs, const Tensors& inputs, const Tensors& without, const Tensors& watched,
                     Emit emit) {
    if (!c10::GradMode::is_enabled() || (inputs.empty() && without.empty())) return;
    auto node = std::shared_ptr<ControlFlowNode>(new ControlFlowNode, torch::autograd::deleteNode);
    Tensors all = inputs;
    all.insert(all.end(), without.begin(), without.end());
    node->set_next_edges(torch::autograd::collect_next_edges(all));
    node->inputs_ = inputs.size();
    node->emit_ = std::move(emit);
    node->outputs_ = fresh_zeros_like(outputs);
    for (const at::Tensor& tensor : watched) node->versions_.emplace_back(tensor, tensor._version());
    for (at::Tensor output : outputs) {
      if (has_gradients(output)) torch::autograd::set_history(output, node);
    }
  }

  // Whoever asks for the gradient gets the error.
  static void attach_error(const Tensors& outputs, const Tensors& inputs, const Status& why) {
    attach(outputs, inputs, {}, {}, [why](Tracer&, const Tensors&) -> Tensors { throw Error(why); });
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    Tracer* tracer = Tracer::current();
    if (tracer == nullptr)
      throw failed_precondition("the gradient of cond or a loop is asked for outside of its trace");
    if (c10::GradMode::is_enabled()) {
      throw Error(Status(StatusCode::kUnimplemented,
                         "cond, while_loop and repeat can be differentiated once, not twice (create_graph)"));
    }
    for (const auto& [tensor, version] : versions_) {
      if (tensor._version() != version) {
        throw invalid_argument("a tensor (", spec_of(tensor).to_string(),
                               ") that cond or a loop used was written to before "
                               "its gradient was taken; take the gradient first");
      }
    }
    for (size_t i = inputs_; i < num_outputs(); ++i) {
      if (!task_should_compute_output(i)) continue;
      throw Error(Status(StatusCode::kUnimplemented,
                         "the gradient by a table whose rows are made on demand, looked up in the body of cond, "
                         "while_loop or repeat, would be as large as the table; look it up outside of the body"));
    }
    Tensors all;
    size_t next = 0;  // of those that have gradients, which are all that autograd counts
    for (const at::Tensor& output : outputs_) {
      const at::Tensor gradient = has_gradients(output) ? gradients.at(next++) : at::Tensor();
      // In the order of memory that the gradient was traced for; that of a sum is one number, expanded.
      all.push_back(gradient.defined() ? gradient.contiguous() : at::zeros_like(output));
    }
    Tensors found = inputs_ == 0 ? Tensors() : emit_(*tracer, all);
    found.resize(num_outputs());
    return found;
  }

 private:
  Emit emit_;
  size_t inputs_ = 0;
  Tensors outputs_;
  std::vector<std::pair<at::Tensor, int64_t>> versions_;
};

// Traces a gradient that somebody may ask for, and says why there can be none. `writes`: the body writes to what is
// outside of it, as a training step does, so that to run it again for its gradient would write again.
Status unless_impossible(bool writes, const std::function<void()>& trace) {
  if (writes) {
    return {StatusCode::kUnimplemented,
            "the gradient goes through a body of cond, while_loop or repeat that writes to a variable or a tensor from "
            "outside (batch norm in training does); let the body return what is to be written, or detach() its results "
            "if they need no gradient"};
  }
  try {
    trace();
    return {};
  } catch (const Error& error) {
    if (error.code() != StatusCode::kUnimplemented) throw;
    return error.status();  // of a body in this one
  }
}

}  // namespace

Tensors cond(const at::Tensor& predicate, const Branch& then, const Branch& otherwise) {
  check_predicate("cond", predicate);
  Tracer* tracer = Tracer::current();
  if (tracer == nullptr) return in_usual_order(predicate.item().toBool() ? then() : otherwise());  // as in a trace

  TracedBody yes, no;
  {
    RunBy by_some(*tracer, predicate);
    yes = tracer->trace_body("then", [&](const Tensors&) { return then(); }, {});
    no = tracer->trace_body("else", [&](const Tensors&) { return otherwise(); }, {});
  }
  check_alike("cond: the second branch", yes.outputs, no.outputs);
  return_in_usual_order(yes);
  return_in_usual_order(no);
  const Tensors inputs = share_captures(yes, no, 0);
  const Tensors results = fresh(yes.outputs);
  const bool writes = writes_from(yes.program, 0) || writes_from(no.program, 0);
  tracer->add_instruction(kCond, {{ValueRef{tracer->value_of(predicate)}}, list_of(*tracer, inputs)}, {results},
                          {tracer->add_body(yes.program), tracer->add_body(no.program)});

  Tensors by = yes.differentiable;
  add_differentiable(by, no.differentiable);
  const Tensors on_demand = take_tables_on_demand(*tracer, by);
  if ((by.empty() && on_demand.empty()) || !c10::GradMode::is_enabled()) return results;
  const Tensors weights = fresh_zeros_like(results);
  TracedBody yes_gradient, no_gradient;
  const Status impossible = unless_impossible(writes, [&] {
    const AsLeaves leaves(by);
    auto gradient_of = [&](const Branch& branch) {
      return [&](const Tensors& given) { return gradients_of(branch(), by, given); };
    };
    yes_gradient = tracer->trace_body("then_gradient", gradient_of(then), weights);
    no_gradient = tracer->trace_body("else_gradient", gradient_of(otherwise), weights);
    return_in_usual_order(yes_gradient);
    return_in_usual_order(no_gradient);
  });
  if (!impossible.ok()) {
    ControlFlowNode::attach_error(results, append(by, on_demand), impossible);
    return results;
  }
  const Tensors gradient_inputs = share_captures(yes_gradient, no_gradient, weights.size());
  ControlFlowNode::attach(results, by, on_demand, append(gradient_inputs, {predicate}),
                          [by, gradient_inputs, predicate, yes_body = yes_gradient.program,
                           no_body = no_gradient.program](Tracer& active, const Tensors& gradients) {
                            Tensors all = gradients;
                            all.insert(all.end(), gradient_inputs.begin(), gradient_inputs.end());
                            Tensors found = fresh_zeros_like(by);
                            active.add_instruction(kCond,
                                                   {{ValueRef{active.value_of(predicate)}}, list_of(active, all)},
                                                   {found}, {active.add_body(yes_body), active.add_body(no_body)});
                            return found;
                          });
  return results;
}

namespace {

// Outside of a trace a loop is a loop.
Tensors run_now(std::optional<int64_t> trips, const LoopTest& more, const LoopBody& body, const Tensors& first) {
  Tensors state = in_usual_order(first);  // as in a trace
  for (int64_t trip = 0;; ++trip) {
    if (!(trips ? trip < *trips : more(state).item().toBool())) return state;
    state = in_usual_order(body(at::scalar_tensor(trip, at::TensorOptions(at::kLong)), state));
  }
}

// The gradient of one trip: body(index, state…, weights…) -> gradients of state…, then of `by`…
TracedBody trace_trip_gradient(Tracer& tracer, const LoopBody& body, const at::Tensor& index, const Tensors& state,
                               const Tensors& by) {
  Tensors arguments = fresh({index});
  for (at::Tensor copy : fresh(state)) {
    if (has_gradients(copy)) copy.requires_grad_();
    arguments.push_back(copy);
  }
  arguments = append(std::move(arguments), fresh_zeros_like(state));
  AsLeaves leaves(by);
  return tracer.trace_body(
      "body_gradient",
      [&](const Tensors& given) {
        const Tensors now(given.begin() + 1, given.begin() + 1 + state.size());
        const Tensors weights(given.begin() + 1 + state.size(), given.end());
        return gradients_of(body(given[0], now), append(now, by), weights);
      },
      arguments);
}

}  // namespace

Tensors loop(std::optional<int64_t> trips, const LoopTest& more, const LoopBody& body, const Tensors& first) {
  if (trips && *trips < 0) throw invalid_argument("repeat: ", *trips, " times; expected 0 or more");
  Tracer* tracer = Tracer::current();
  if (tracer == nullptr) return run_now(trips, more, body, first);

  at::Tensor index;
  {
    Untraced untraced;
    PlainTensors plain;
    index = at::scalar_tensor(0, at::TensorOptions(at::kLong));
  }
  const Tensors state = in_usual_order(first);  // every trip gets what the one before returned, in that order
  Tensors arguments = append({index}, fresh(state));
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i].requires_grad()) arguments[i + 1].requires_grad_();
  }
  TracedBody trip = tracer->trace_body(
      "body",
      [&](const Tensors& given) {
        Tracer::current()->note_alike(given[0]);  // the number of the trip
        return body(given[0], Tensors(given.begin() + 1, given.end()));
      },
      arguments);
  check_alike("the body of the loop", state, trip.outputs);
  return_in_usual_order(trip);
  check_state_is_written_where_it_is(trip.program, first);
  std::vector<int32_t> bodies;
  Tensors inputs = trip.captures;
  if (!trips) {
    TracedBody test = tracer->trace_body(
        "more",
        [&](const Tensors& given) {
          at::Tensor answer = more(given);
          check_predicate("while_loop", answer);
          return Tensors{answer};
        },
        fresh(state));
    // The test has no index: while captures are matched, it gets one in its place.
    test.program.arguments.insert(test.program.arguments.begin(), {test.program.new_value(), spec_of(index), 0});
    inputs = share_captures(trip, test, 1 + state.size());
    test.program.arguments.erase(test.program.arguments.begin());
    bodies = {tracer->add_body(trip.program), tracer->add_body(test.program)};
  } else {
    bodies = {tracer->add_body(trip.program)};
  }
  const Tensors results = fresh(state);
  const Tensors saved = fresh(state);
  const Tensors count = fresh({index});
  const Argument times = trips ? Argument{*trips} : Argument{None{}};
  tracer->add_instruction(kLoop, {times, list_of(*tracer, state), list_of(*tracer, inputs)}, {results, saved, count},
                          bodies);

  Tensors by = trip.differentiable;
  const Tensors on_demand = take_tables_on_demand(*tracer, by);
  const bool by_state = std::any_of(state.begin(), state.end(), [](const at::Tensor& t) { return t.requires_grad(); });
  if ((by.empty() && on_demand.empty() && !by_state) || state.empty() || !c10::GradMode::is_enabled()) return results;
  Tensors wrt;
  for (const at::Tensor& initial : state) {
    if (initial.requires_grad()) wrt.push_back(initial);
  }
  TracedBody gradient;
  const Status impossible = unless_impossible(writes_from(trip.program, 0), [&] {
    gradient = trace_trip_gradient(*tracer, body, index, state, by);
    return_in_usual_order(gradient);
  });
  if (!impossible.ok()) {
    ControlFlowNode::attach_error(results, append(append(wrt, by), on_demand), impossible);
    return results;
  }
  ControlFlowNode::attach(
      results, append(wrt, by), on_demand, append(gradient.captures, by),
      [=, program = gradient.program, captures = gradient.captures](Tracer& active, const Tensors& gradients) {
        Program trip_gradient = program;
        // `by` comes in as inputs of its own: the instruction sums a gradient for each of its first inputs.
        std::vector<ProgramArgument> by_arguments;
        for (const at::Tensor& tensor : by) by_arguments.push_back({trip_gradient.new_value(), spec_of(tensor), 0});
        trip_gradient.arguments.insert(trip_gradient.arguments.begin() + 1 + 2 * state.size(), by_arguments.begin(),
                                       by_arguments.end());
        // The other inputs need no gradients.
        trip_gradient.outputs.resize(trip_gradient.outputs.size() + captures.size(), kNoValue);
        const Tensors state_gradients = fresh_zeros_like(state);
        const Tensors by_gradients = fresh_zeros_like(by);
        active.add_instruction(kLoopGradient,
                               {{ValueRef{active.value_of(count[0])}},
                                list_of(active, saved),
                                list_of(active, gradients),
                                list_of(active, append(by, captures))},
                               {state_gradients, append(by_gradients, Tensors(captures.size()))},
                               {active.add_body(std::move(trip_gradient))});
        Tensors found;
        for (size_t i = 0; i < state.size(); ++i) {
          if (state[i].requires_grad()) found.push_back(state_gradients[i]);
        }
        return append(std::move(found), by_gradients);
      });
  return results;
}

}  // namespace muster::control_flow_internal

namespace muster {

at::Tensor element(const at::Tensor& values, const at::Tensor& index) {
  if (values.dim() == 0 || index.numel() != 1 || index.scalar_type() != at::kLong) {
    throw invalid_argument(
        "element: takes a tensor with at least one dimension and an int64 index of one element, got ",
        spec_of(values).to_string(), " and ", spec_of(index).to_string());
  }
  Tracer* tracer = Tracer::current();
  if (tracer == nullptr) {
    const int64_t number = index.item().toLong();
    if (number < 0 || number >= values.size(0)) {
      throw out_of_range("element: index ", number, " of ", spec_of(values).to_string());
    }
    return values.select(0, number);
  }
  if (values.requires_grad()) return values.index_select(0, index.reshape({1})).squeeze(0);
  at::Tensor result;
  {
    Untraced untraced;
    PlainTensors plain;
    result = values.select(0, 0).clone(at::MemoryFormat::Contiguous);
  }
  tracer->add_instruction(kElement, {{ValueRef{tracer->value_of(values)}}, {ValueRef{tracer->value_of(index)}}},
                          {{result}}, {});
  return result;
}

}  // namespace muster

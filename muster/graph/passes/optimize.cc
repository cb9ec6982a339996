#include "muster/base/strings.h"
#include "muster/graph/passes/passes.h"

namespace muster {

std::string PassReport::to_string() const {
  return str_cat(dead, " dead, ", views, " views, ", pooled, " pooled, ", repeated, " repeated, ", folded, " folded, ",
                 fused, " fused, ", contracted, " contracted, ", early, " early");
}

PassReport optimize(Program& program, const PassOptions& options, const Evaluate& evaluate,
                    const SchemaLookup& schema_of) {
  PassReport report;
  if (options.dead) report.dead += eliminate_dead(program);
  if (options.views) report.views += cancel_views(program);
  // Folding before merging: what it leaves behind are equal constants, which make more instructions equal.
  if (options.fold) report.folded += fold_constants(program, evaluate, options.fold_max_bytes);
  if (options.repeated) report.repeated += merge_repeated(program);
  if (options.pool) report.pooled += pool_first(program);
  if (options.contract) report.contracted += contract_updates(program, schema_of);
  if (options.fuse) report.fused += fuse_updates(program, schema_of);
  if (options.early) report.early += collect_early(program);
  // Constants and inputs that nobody needs any more.
  if (options.dead) report.dead += eliminate_dead(program);
  return report;
}

}  // namespace muster

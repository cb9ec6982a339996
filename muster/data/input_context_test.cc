#include "muster/data/input_context.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

std::string words_of(const InputContext& context, int global) {
  try {
    context.per_replica_batch_size(global);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    return error.status().message();
  }
  return "";
}

TEST(InputContext, IsTheOnlyPipelineUnlessItIsTold) {
  const InputContext context;

  EXPECT_EQ(context.num_input_pipelines, 1);
  EXPECT_EQ(context.input_pipeline_id, 0);
  EXPECT_EQ(context.per_replica_batch_size(64), 64);
}

TEST(InputContext, SharesABatchEvenlyAmongTheReplicas) {
  const InputContext context{.num_replicas_in_sync = 4};

  EXPECT_EQ(context.per_replica_batch_size(64), 16);
}

TEST(InputContext, RejectsABatchThatCannotBeSharedEvenly) {
  EXPECT_EQ(
      words_of({.num_replicas_in_sync = 3}, 64),
      "per_replica_batch_size: a global batch of 64 for 3 replicas; expected a positive multiple of the replicas");
  EXPECT_NE(words_of({.num_replicas_in_sync = 3}, 0), "");
  EXPECT_NE(words_of({.num_replicas_in_sync = 0}, 64), "");
}

}  // namespace
}  // namespace muster

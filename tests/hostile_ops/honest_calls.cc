#include "honest_calls.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <torch/library.h>
#include <torch/torch.h>
#include <unistd.h>

#include <functional>
#include <iostream>

#include "muster/runtime/ops/op_catalog.h"

namespace muster::testing_support {
namespace {

namespace F = torch::nn::functional;

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr size_t kKept = 8;  // of one op

Calls* noted = nullptr;

c10::IValue copy_of(const c10::IValue& value) {
  auto copied = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.detach().clone() : tensor; };
  if (value.isTensor()) return copied(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> tensors;
  for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(copied(tensor));
  return tensors;
}

void note(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(kKey);
  auto& calls = (*noted)[qualified_name(op.operator_name())];
  if (calls.size() < kKept) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const size_t count = op.schema().arguments().size();
    std::vector<c10::IValue> copies;
    for (size_t i = stack->size() - count; i < stack->size(); ++i) copies.push_back(copy_of((*stack)[i]));
    calls.push_back(std::move(copies));
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

at::Tensor leaf(std::vector<int64_t> sizes) { return torch::randn(sizes).requires_grad_(true); }
at::Tensor ids(std::vector<int64_t> sizes, int64_t end) { return torch::randint(0, end, sizes, torch::kLong); }

std::vector<std::function<at::Tensor()>> layers() {
  std::vector<std::function<at::Tensor()>> all;
  auto add = [&](std::function<at::Tensor()> layer) { all.push_back(std::move(layer)); };
  add([] { return torch::conv1d(leaf({2, 3, 8}), leaf({4, 3, 3}), leaf({4})); });
  add([] { return torch::conv2d(leaf({2, 3, 8, 8}), leaf({4, 3, 3, 3}), leaf({4}), 1, 1); });
  add([] { return torch::conv2d(torch::randn({2, 3, 8, 8}), leaf({4, 3, 3, 3}), leaf({4}), 2); });
  add([] { return torch::conv2d(leaf({2, 9, 8, 8}), leaf({8, 9, 3, 3}), leaf({8}), 1, 1); });
  add([] { return torch::conv2d(leaf({2, 4, 8, 8}), leaf({4, 1, 3, 3}), {}, 2, 1, 1, 4); });
  add([] { return torch::conv3d(leaf({1, 2, 4, 4, 4}), leaf({3, 2, 2, 2, 2}), leaf({3})); });
  add([] { return torch::conv_transpose2d(leaf({2, 3, 4, 4}), leaf({3, 4, 3, 3}), leaf({4}), 2); });
  add([] { return torch::conv_tbc(leaf({5, 2, 3}), leaf({3, 3, 4}), leaf({4})); });
  add([] { return torch::max_pool1d(leaf({2, 3, 8}), 2); });
  add([] { return torch::max_pool1d(torch::randn({2, 3, 8}), 2); });
  add([] { return torch::max_pool2d(leaf({2, 3, 8, 8}), 2); });
  add([] { return torch::max_pool3d(leaf({1, 2, 4, 4, 4}), 2); });
  add([] { return torch::avg_pool2d(leaf({2, 3, 8, 8}), 2); });
  add([] { return torch::avg_pool3d(leaf({1, 2, 4, 4, 4}), 2); });
  add([] { return torch::adaptive_avg_pool1d(leaf({2, 3, 8}), 3); });
  add([] { return torch::adaptive_avg_pool2d(leaf({2, 3, 8, 8}), {3, 3}); });
  add([] { return torch::adaptive_avg_pool3d(leaf({1, 2, 4, 4, 4}), {2, 2, 2}); });
  add([] { return std::get<0>(torch::adaptive_max_pool2d(leaf({2, 3, 8, 8}), {3, 3})); });
  add([] { return std::get<0>(torch::adaptive_max_pool3d(leaf({1, 2, 4, 4, 4}), {2, 2, 2})); });
  add([] {
    return std::get<0>(torch::fractional_max_pool2d(leaf({2, 3, 8, 8}), {2, 2}, {4, 4}, torch::rand({2, 3, 2})));
  });
  add([] {
    return std::get<0>(
        torch::fractional_max_pool3d(leaf({1, 2, 8, 8, 8}), {2, 2, 2}, {4, 4, 4}, torch::rand({1, 2, 3})));
  });
  add([] {
    auto [pooled, where] = torch::max_pool2d_with_indices(leaf({2, 3, 8, 8}), 2);
    return torch::max_unpool2d(pooled, where, {8, 8});
  });
  add([] {
    auto [pooled, where] = torch::max_pool3d_with_indices(leaf({1, 2, 4, 4, 4}), 2);
    return torch::max_unpool3d(pooled, where, {4, 4, 4}, {2, 2, 2}, {0, 0, 0});
  });
  for (bool train : {true, false}) {
    add([train] {
      return torch::batch_norm(leaf({2, 3, 4, 4}), leaf({3}), leaf({3}), torch::zeros({3}), torch::ones({3}), train,
                               0.1, 1e-5, false);
    });
  }
  add([] { return torch::batch_norm(leaf({4, 3}), {}, {}, {}, {}, true, 0.1, 1e-5, false); });
  add([] { return torch::instance_norm(leaf({2, 3, 4, 4}), {}, {}, {}, {}, true, 0.1, 1e-5, false); });
  add([] { return torch::layer_norm(leaf({2, 3, 4}), {4}, leaf({4}), leaf({4})); });
  add([] { return torch::layer_norm(leaf({2, 3, 4}), {3, 4}); });
  add([] { return torch::rms_norm(leaf({2, 3, 4}), {4}, leaf({4})); });
  add([] { return torch::group_norm(leaf({2, 4, 3, 3}), 2, leaf({4}), leaf({4})); });
  add([] { return torch::_weight_norm(leaf({4, 3, 2}), leaf({4, 1, 1})); });
  add([] { return torch::renorm(leaf({3, 4}), 2, 0, 1); });
  add([] { return torch::embedding(leaf({7, 3}), ids({2, 4}, 7)); });
  add([] { return torch::embedding(leaf({7, 3}), ids({2, 4}, 7), 1, true); });
  for (int64_t mode : {0, 1, 2}) {
    add([mode] {
      return std::get<0>(torch::embedding_bag(leaf({7, 3}), ids({6}, 7), torch::tensor({0, 2, 5}), false, mode));
    });
  }
  for (int64_t mode : {0, 1, 2}) {  // with bags that are empty, and where the last one ends
    add([mode] {
      return std::get<0>(torch::embedding_bag(leaf({7, 3}), ids({6}, 7), torch::tensor({0, 2, 2, 6}), false, mode,
                                              false, {}, /*include_last_offset=*/true));
    });
  }
  add([] {
    return std::get<0>(
        torch::embedding_bag(leaf({7, 3}), ids({6}, 7), torch::tensor({0, 2, 5}), false, 0, false, leaf({6})));
  });
  add([] {
    return std::get<0>(torch::nn::LSTM(torch::nn::LSTMOptions(3, 4).num_layers(2))->forward(leaf({5, 2, 3})));
  });
  add([] { return std::get<0>(torch::nn::GRU(3, 4)->forward(leaf({5, 2, 3}))); });
  add([] { return std::get<0>(torch::nn::RNN(3, 4)->forward(leaf({5, 2, 3}))); });
  add([] {
    auto packed = torch::_pack_padded_sequence(leaf({5, 2, 3}), torch::tensor({5, 3}), false);
    return std::get<0>(packed);
  });
  add([] { return torch::nll_loss(leaf({4, 5}), ids({4}, 5), torch::rand({5})); });
  add([] { return torch::nll_loss2d(leaf({2, 5, 3, 3}), ids({2, 3, 3}, 5), torch::rand({5})); });
  add([] { return torch::cross_entropy_loss(leaf({4, 5}), ids({4}, 5)); });
  add([] {
    return torch::ctc_loss(leaf({6, 2, 5}).log_softmax(2), ids({2, 3}, 4) + 1, torch::tensor({6, 5}),
                           torch::tensor({3, 2}));
  });
  add([] {
    return torch::ctc_loss(leaf({6, 2, 5}).log_softmax(2), ids({5}, 4) + 1, std::vector<int64_t>{6, 5},
                           std::vector<int64_t>{3, 2});
  });
  // Nobody looks at what pads a row.
  add([] {
    return torch::ctc_loss(leaf({6, 2, 5}).log_softmax(2), torch::tensor({{1, 2, 4}, {3, -1, 99}}),
                           std::vector<int64_t>{6, 5}, std::vector<int64_t>{3, 1});
  });
  add([] { return torch::multi_margin_loss(leaf({4, 5}), ids({4}, 5)); });
  add([] { return torch::multilabel_margin_loss(leaf({2, 4}), torch::tensor({{3, 0, -1, 1}, {0, 1, 2, -1}})); });
  add([] { return torch::mse_loss(leaf({3, 4}), torch::randn({3, 4})); });
  add([] { return torch::huber_loss(leaf({3, 4}), torch::randn({3, 4})); });
  add([] { return torch::smooth_l1_loss(leaf({3, 4}), torch::randn({3, 4})); });
  add([] { return torch::soft_margin_loss(leaf({3, 4}), torch::ones({3, 4})); });
  add([] { return torch::binary_cross_entropy(leaf({3, 4}).sigmoid(), torch::rand({3, 4})); });
  add([] { return torch::kl_div(leaf({3, 4}), torch::rand({3, 4})); });
  for (int64_t mode : {0, 1, 2}) {
    add([mode] { return torch::grid_sampler(leaf({2, 3, 4, 4}), leaf({2, 5, 5, 2}), mode, mode, false); });
  }
  add([] { return torch::grid_sampler(leaf({1, 2, 4, 4, 4}), leaf({1, 3, 3, 3, 3}), 0, 0, false); });
  add([] { return torch::affine_grid_generator(leaf({2, 2, 3}), {2, 3, 4, 4}, false); });
  add([] { return torch::upsample_nearest1d(leaf({2, 3, 4}), {8}); });
  add([] { return torch::upsample_nearest2d(leaf({2, 3, 4, 4}), {8, 7}); });
  add([] { return torch::upsample_nearest3d(leaf({1, 2, 3, 3, 3}), {5, 5, 5}); });
  add([] { return torch::_upsample_nearest_exact2d(leaf({2, 3, 4, 4}), {8, 7}); });
  add([] { return torch::_upsample_nearest_exact3d(leaf({1, 2, 3, 3, 3}), {5, 5, 5}); });
  add([] { return torch::upsample_linear1d(leaf({2, 3, 4}), {8}, false); });
  add([] { return torch::upsample_bilinear2d(leaf({2, 3, 4, 4}), {8, 7}, false); });
  add([] { return torch::upsample_bicubic2d(leaf({2, 3, 4, 4}), {8, 7}, false); });
  add([] { return torch::upsample_trilinear3d(leaf({1, 2, 3, 3, 3}), {5, 5, 5}, false); });
  add([] { return torch::_upsample_bilinear2d_aa(leaf({2, 3, 4, 4}), {3, 2}, false); });
  add([] { return torch::_upsample_bicubic2d_aa(leaf({2, 3, 4, 4}), {3, 2}, false); });
  add([] { return torch::reflection_pad1d(leaf({2, 3, 4}), {1, 2}); });
  add([] { return torch::reflection_pad2d(leaf({2, 3, 4, 4}), {1, 2, 1, 0}); });
  add([] { return torch::reflection_pad3d(leaf({1, 2, 3, 3, 3}), {1, 1, 1, 1, 1, 1}); });
  add([] { return torch::replication_pad1d(leaf({2, 3, 4}), {1, 2}); });
  add([] { return torch::replication_pad2d(leaf({2, 3, 4, 4}), {1, 2, 1, 0}); });
  add([] { return torch::replication_pad3d(leaf({1, 2, 3, 3, 3}), {1, 1, 1, 1, 1, 1}); });
  add([] { return torch::im2col(leaf({2, 3, 4, 4}), {2, 2}, {1, 1}, {0, 0}, {1, 1}); });
  add([] { return torch::col2im(leaf({2, 12, 9}), {4, 4}, {2, 2}, {1, 1}, {0, 0}, {1, 1}); });
  add([] { return leaf({2, 8}).unfold(1, 3, 2); });
  add([] { return torch::scaled_dot_product_attention(leaf({2, 3, 4, 8}), leaf({2, 3, 5, 8}), leaf({2, 3, 5, 8})); });
  add([] {
    return torch::scaled_dot_product_attention(leaf({2, 3, 4, 8}), leaf({2, 3, 5, 8}), leaf({2, 3, 5, 8}),
                                               torch::randn({4, 5}));
  });
  add([] {
    return torch::scaled_dot_product_attention(leaf({2, 4, 4, 8}), leaf({2, 2, 5, 8}), leaf({2, 2, 5, 8}), {}, 0, false,
                                               {}, /*enable_gqa=*/true);
  });
  add([] { return torch::cdist(leaf({2, 3, 4}), leaf({2, 5, 4}), 1); });
  add([] { return torch::pdist(leaf({4, 3})); });
  add([] { return torch::real(torch::fft::fftn(leaf({3, 4}))); });
  add([] { return torch::fft::irfft(torch::fft::rfft(leaf({3, 8}))); });
  add([] { return torch::fft::irfftn(torch::fft::rfftn(leaf({3, 4, 5}))); });
  add([] { return torch::real(torch::stft(leaf({64}), 16, 8, 16, torch::ones({16}), false, true, true)); });
  add([] {
    auto [lu, pivots] = torch::linalg_lu_factor(torch::randn({3, 3}));
    torch::lu_unpack(lu, pivots);
    torch::lu_solve(torch::randn({3, 2}), lu, pivots);
    return torch::linalg_lu_solve(lu, pivots, leaf({3, 2}));
  });
  add([] {
    at::Tensor a = torch::randn({3, 3});
    auto [ld, pivots] = torch::linalg_ldl_factor(a + a.t());
    return torch::linalg_ldl_solve(ld, pivots, torch::randn({3, 2}));
  });
  add([] {
    at::Tensor a = leaf({3, 3});
    return torch::linalg_cholesky(torch::mm(a, a.t()) + torch::eye(3));
  });
  add([] { return std::get<1>(torch::linalg_svd(leaf({3, 4}), false)); });
  add([] { return std::get<0>(torch::linalg_qr(leaf({4, 3}))); });
  add([] { return torch::linalg_solve(leaf({3, 3}), leaf({3, 2})); });
  add([] { return torch::linalg_inv(leaf({3, 3})); });
  add([] { return torch::matrix_exp(leaf({3, 3})); });
  add([] {
    auto [a, tau] = torch::geqrf(torch::randn({4, 3}));
    return torch::ormqr(a, tau, torch::randn({4, 2}));
  });
  add([] { return torch::bilinear(leaf({4, 3}), leaf({4, 2}), leaf({5, 3, 2}), leaf({5})); });
  add([] { return torch::addmm(leaf({4}), leaf({3, 2}), leaf({2, 4})); });
  add([] { return torch::baddbmm(leaf({2, 3, 4}), leaf({2, 3, 5}), leaf({2, 5, 4})); });
  add([] { return torch::addbmm(leaf({3, 4}), leaf({2, 3, 5}), leaf({2, 5, 4})); });
  add([] { return torch::addmv(leaf({3}), leaf({3, 2}), leaf({2})); });
  add([] { return torch::addr(leaf({3, 2}), leaf({3}), leaf({2})); });
  add([] { return torch::einsum("bij,bjk->bik", {leaf({2, 3, 4}), leaf({2, 4, 5})}); });
  add([] { return leaf({4, 5}).index({ids({3}, 4)}); });
  add([] { return leaf({4, 5}).index_put({ids({3}, 4)}, leaf({3, 5}), true); });
  add([] { return leaf({4, 5}).gather(1, ids({4, 2}, 5)); });
  add([] { return leaf({4, 5}).scatter_reduce(1, ids({4, 2}, 5), leaf({4, 2}), "amax"); });
  add([] { return leaf({4, 5}).scatter(1, ids({4, 2}, 5), leaf({4, 2})); });
  add([] { return torch::scatter(torch::randn({4, 5}), 1, ids({4, 2}, 5), torch::randn({4, 2}), "multiply"); });
  add([] { return torch::index_reduce(leaf({4, 5}), 0, ids({3}, 4), leaf({3, 5}), "amax"); });
  add([] { return leaf({4, 5}).index_add(0, ids({3}, 4), leaf({3, 5})); });
  add([] { return leaf({4, 5}).index_copy(0, torch::tensor({0, 2, 1}), leaf({3, 5})); });
  add([] { return leaf({4, 5}).index_fill(0, ids({2}, 4), torch::tensor(1.5)); });
  add([] { return leaf({4, 5}).index_select(1, ids({3}, 5)); });
  add([] { return leaf({4, 5}).masked_select(torch::rand({4, 5}) > 0.5); });
  add([] { return leaf({4, 5}).masked_scatter(torch::rand({4, 5}) > 0.5, leaf({20})); });
  add([] { return leaf({4, 5}).take(ids({3}, 20)); });
  add([] { return leaf({4, 5}).put(ids({3}, 20), leaf({3})); });
  add([] { return torch::repeat_interleave(leaf({3}), torch::tensor({1, 0, 2})); });
  add([] { return std::get<0>(leaf({4, 5}).topk(2)); });
  add([] { return std::get<0>(leaf({4, 5}).sort()); });
  add([] { return std::get<0>(leaf({4, 5}).kthvalue(2)); });
  add([] { return std::get<0>(leaf({4, 5}).cummax(1)); });
  add([] { return leaf({4, 5}).logcumsumexp(1); });
  add([] { return torch::bucketize(torch::randn({4}), torch::linspace(-1, 1, 5)); });
  add([] { return torch::searchsorted(torch::linspace(-1, 1, 5), torch::randn({4})); });
  add([] { return torch::histc(torch::randn({20}), 5); });
  add([] { return std::get<0>(torch::histogram(torch::randn({20}), torch::linspace(-1, 1, 5))); });
  add([] { return torch::bincount(ids({20}, 5)); });
  add([] { return torch::prelu(leaf({2, 3, 4}), leaf({3})); });
  add([] { return torch::rrelu(leaf({3, 4}), 0.1, 0.3, true); });
  add([] { return torch::glu(leaf({3, 4})); });
  add([] { return torch::softmax(leaf({3, 4}), 1); });
  add([] { return torch::log_softmax(leaf({3, 4}), 1); });
  add([] { return torch::_masked_softmax(torch::randn({2, 3, 4, 4}), torch::zeros({4, 4}, torch::kBool), 3, 0); });
  add([] {
    return torch::fake_quantize_per_channel_affine(leaf({3, 4}), torch::ones({3}), torch::zeros({3}, torch::kInt), 0, 0,
                                                   255);
  });
  for (bool amsgrad : {false, true}) {
    add([amsgrad] {
      const std::vector<at::Tensor> values{torch::randn({3, 4}), torch::randn({5})},
          steps{torch::ones({}), torch::ones({})};
      const std::vector<at::Tensor> a{torch::rand({3, 4}), torch::rand({5})}, b{torch::rand({3, 4}), torch::rand({5})};
      const std::vector<at::Tensor> most = amsgrad ? b : std::vector<at::Tensor>();
      at::_fused_adam_(values, a, a, b, most, steps, 0.01, 0.9, 0.999, 0.01, 1e-8, amsgrad, false);
      at::_fused_adamw_(values, a, a, b, most, steps, 0.01, 0.9, 0.999, 0.01, 1e-8, amsgrad, false);
      at::_fused_adagrad_(values, a, b, steps, 0.01, 0.1, 0.0, 1e-8, false);
      at::_fused_sgd_(values, a, b, 0.01, 0.9, 0.1, 0.0, true, false, false);
      return values[0];
    });
  }
  add([] { return std::get<0>(leaf({4, 5}).median(1)); });
  add([] { return leaf({3, 4}).narrow(0, torch::tensor(1), 2); });
  add([] { return leaf({3, 4}).select_scatter(leaf({4}), 0, 1); });
  add([] { return leaf({3, 4}).reshape({2, 6}).t().reshape({12}); });
  add([] { return torch::multinomial(torch::rand({3, 4}), 2); });
  add([] {
    return torch::ctc_loss(leaf({6, 2, 5}).log_softmax(2), ids({2, 3}, 4) + 1, torch::tensor({6, 6}),
                           torch::tensor({3, 3}));
  });
  return all;
}

Calls record() {
  Calls calls;
  noted = &calls;
  torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&note>());
  c10::impl::IncludeDispatchKeyGuard on(kKey);
  torch::manual_seed(1);
  for (const auto& layer : layers()) {
    try {
      at::Tensor result = layer();
      if (result.requires_grad()) result.sum().backward();
    } catch (const c10::Error& error) {
      std::cerr << "an honest layer fails: " << error.what_without_backtrace() << std::endl;
    }
  }
  return calls;
}

// One list of a name and its operands after the other.
std::vector<char> bytes_of(const Calls& calls) {
  c10::impl::GenericList all(c10::AnyType::get());
  for (const auto& [name, stacks] : calls) {
    for (const auto& stack : stacks) {
      try {
        std::vector<c10::IValue> one{name};
        one.insert(one.end(), stack.begin(), stack.end());
        const c10::IValue tuple = c10::ivalue::Tuple::create(std::move(one));
        torch::pickle_save(tuple);  // not everything can be written
        all.push_back(tuple);
      } catch (const std::exception&) {
      }
    }
  }
  return torch::pickle_save(all);
}

}  // namespace

Calls honest_calls() {
  const int file = memfd_create("honest calls", 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::vector<char> bytes = bytes_of(record());
    const bool written = write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
    _exit(written ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Calls calls;
  if (status != 0) return calls;
  std::vector<char> bytes(lseek(file, 0, SEEK_END));
  if (pread(file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return calls;
  close(file);
  const c10::List<c10::IValue> recorded = torch::pickle_load(bytes).toList();
  for (size_t number = 0; number < recorded.size(); ++number) {
    const c10::IValue one = recorded.get(number);
    const auto& elements = one.toTupleRef().elements();
    std::vector<c10::IValue> stack;
    for (size_t i = 1; i < elements.size(); ++i) stack.push_back(elements[i]);
    calls[elements[0].toStringRef()].push_back(std::move(stack));
  }
  return calls;
}

}  // namespace muster::testing_support

// All of Muster that a training program needs. Light on purpose: it includes no <torch/torch.h>.
#pragma once

#include "muster/base/cancellation.h"
#include "muster/base/log.h"
#include "muster/base/progress.h"
#include "muster/base/status.h"
#include "muster/graph/device_spec.h"
#include "muster/graph/dump.h"
#include "muster/graph/serialize.h"
#include "muster/runtime/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/function.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/variable.h"

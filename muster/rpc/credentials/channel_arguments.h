#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>

#include "muster/rpc/credentials/current_credentials.h"

namespace muster {

// How both ends of a connection use TCP and HTTP/2: large frames and reads for large tensors, pings that find a peer
// which has gone without a word.
void set_transport_arguments(const std::function<void(const char* name, int value)>& set);

// Sets what gRPC's speed hangs on and what is of the whole process, the user's part included: malloc keeps free memory,
// and abseil's mutexes look for no deadlocks. Only once, with the first channel or server, so that what the program
// sets afterwards stays; not at all with MUSTER_PROCESS_SETTINGS=off in the environment. False: it did nothing.
bool set_process_up();

// Every connection is shown the certificate of its time. The result must outlive the server.
std::shared_ptr<grpc::ServerCredentials> server_credentials(const std::shared_ptr<CurrentCredentials>& credentials);
std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const Credentials& credentials);

}  // namespace muster

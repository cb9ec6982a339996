// The methods of all services, by their names on the wire.
#pragma once

namespace muster {

// Of every server, whatever it serves.
namespace call_rpc {
inline constexpr const char* kCancel = "/muster.Calls/Cancel";
inline constexpr const char* kAcknowledge = "/muster.Calls/Acknowledge";
inline constexpr const char* kLeave = "/muster.Calls/Leave";
inline constexpr const char* kMeet = "/muster.Calls/Meet";
}  // namespace call_rpc

// Metadata of a request that must be applied once and is made again: how many milliseconds ago it was first made.
inline constexpr const char* kAgeOfRequest = "muster-age-ms";
inline constexpr const char* kBytesOfRequest =
    "muster-bytes";  // that its message, if that is large, and its answer take

namespace worker_rpc {
inline constexpr const char* kRegister = "/muster.Worker/Register";
inline constexpr const char* kDeregister = "/muster.Worker/Deregister";
inline constexpr const char* kRun = "/muster.Worker/Run";
inline constexpr const char* kRunAll = "/muster.Worker/RunAll";
inline constexpr const char* kOpenSource = "/muster.Worker/OpenSource";
inline constexpr const char* kCloseSource = "/muster.Worker/CloseSource";
inline constexpr const char* kSourcePosition = "/muster.Worker/SourcePosition";
inline constexpr const char* kHandOut = "/muster.Worker/HandOut";
inline constexpr const char* kReceive = "/muster.Worker/Receive";
inline constexpr const char* kAbort = "/muster.Worker/Abort";
inline constexpr const char* kRenew = "/muster.Worker/Renew";
inline constexpr const char* kReleaseOwner = "/muster.Worker/ReleaseOwner";
inline constexpr const char* kVariables = "/muster.Worker/Variables";
inline constexpr const char* kSave = "/muster.Worker/Save";
inline constexpr const char* kRestore = "/muster.Worker/Restore";
inline constexpr const char* kReset = "/muster.Worker/Reset";
inline constexpr const char* kStatus = "/muster.Worker/Status";
}  // namespace worker_rpc

namespace master_rpc {
inline constexpr const char* kCreate = "/muster.Master/CreateSession";
inline constexpr const char* kExtend = "/muster.Master/ExtendSession";
inline constexpr const char* kRun = "/muster.Master/RunStep";
inline constexpr const char* kRelease = "/muster.Master/ReleaseProgram";
inline constexpr const char* kRenew = "/muster.Master/RenewSession";
inline constexpr const char* kDevices = "/muster.Master/ListDevices";
inline constexpr const char* kReset = "/muster.Master/Reset";
inline constexpr const char* kClose = "/muster.Master/CloseSession";
}  // namespace master_rpc

}  // namespace muster

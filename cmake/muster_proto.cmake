# muster_proto(graph.proto …) compiles the folder's .proto files into muster; include them as "muster/<folder>/graph.pb.h".
function(muster_proto)
  set(generated "${PROJECT_BINARY_DIR}/generated")
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  foreach(proto IN LISTS ARGV)
    get_filename_component(name "${proto}" NAME_WE)
    set(stem "${generated}/${folder}/${name}")
    add_custom_command(
      OUTPUT "${stem}.pb.cc" "${stem}.pb.h"
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${generated}"
      COMMAND protobuf::protoc "--cpp_out=${generated}" "--proto_path=${PROJECT_SOURCE_DIR}" "${folder}/${proto}"
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${proto}" protobuf::protoc
      COMMENT "Generating ${folder}/${name}.pb.h"
      VERBATIM)
    # A target of its own, so that every user of muster waits for the header and not only the library's own sources.
    add_custom_target(muster_${name}_proto DEPENDS "${stem}.pb.h")
    add_dependencies(muster muster_${name}_proto)
    target_sources(muster PRIVATE "${stem}.pb.cc")
    set_source_files_properties("${stem}.pb.cc" TARGET_DIRECTORY muster PROPERTIES GENERATED ON COMPILE_OPTIONS -w)
  endforeach()
endfunction()

// Reads a pod as Volcano does, and prints the GPUs and the memory that each of its containers asks for.
//
// The arguments are the resources of the count, the memory, the memory's percentage and the cores.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	"volcano.sh/volcano/pkg/scheduler/api/devices"
)

func main() {
	var pod v1.Pod
	if err := json.NewDecoder(os.Stdin).Decode(&pod); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	names := os.Args[1:]
	found := devices.ExtractResourceRequest(&pod, "NVIDIA", names[0], names[1], names[2], names[3])
	_ = json.NewEncoder(os.Stdout).Encode(found)
}

// Reads a pod as KAI does, and prints the GPU memory that KAI saw in it.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/KAI-scheduler/pkg/common/resources"
	v1 "k8s.io/api/core/v1"
)

type seen struct {
	Mib      int64  `json:"mib"`
	Devices  int64  `json:"devices"`
	Fraction bool   `json:"shares"`
	Error    string `json:"error,omitempty"`
}

func main() {
	var pod v1.Pod
	if err := json.NewDecoder(os.Stdin).Decode(&pod); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	found := seen{Fraction: resources.RequestsGPUFraction(&pod)}
	var err error
	if found.Mib, err = resources.GetGPUMemory(&pod); err != nil {
		found.Error = err.Error()
	}
	if found.Devices, err = resources.GetNumGPUFractionDevices(&pod); err != nil {
		found.Error = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(found)
}

// Toy is a deliberately slow controller with a known rate: it creates the pods of the Toys that it
// sees at exactly RATE pods per second, each on a node from the start. With STATUS_AFTER it writes
// the status of a Toy that long after its last pod. With LEAK it keeps so many bytes, and a goroutine,
// for each pod. The laboratory's tests build and measure it.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

var toys = schema.GroupVersionResource{Group: "lab.example.com", Version: "v1", Resource: "toys"}

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig, address string) error {
	rate, err := strconv.ParseFloat(os.Getenv("RATE"), 64)
	if err != nil {
		return err
	}
	var statusAfter time.Duration
	if text := os.Getenv("STATUS_AFTER"); text != "" {
		if statusAfter, err = time.ParseDuration(text); err != nil {
			return err
		}
	}
	leak := 0
	if text := os.Getenv("LEAK"); text != "" {
		if leak, err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	var leaked [][]byte
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	watch, err := dyn.Resource(toys).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		failed <- http.ListenAndServe(address, promhttp.Handler())
	}()
	defer func() { log.Printf("leaked %d times", len(leaked)) }()
	log.Print("started")
	var due time.Time
	written := 0
	for {
		select {
		case err := <-failed:
			return err
		case e, ok := <-watch.ResultChan():
			if !ok {
				return fmt.Errorf("the watch has ended")
			}
			toy, isToy := e.Object.(*unstructured.Unstructured)
			if e.Type != "ADDED" || !isToy {
				continue
			}
			var spec struct {
				Pods     int64          `json:"pods"`
				Template corev1.PodSpec `json:"template"`
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(toy.Object["spec"].(map[string]any), &spec); err != nil {
				return err
			}
			for i := range spec.Pods {
				if now := time.Now(); due.Before(now.Add(-time.Second)) {
					due = now // there was nothing to do
				}
				due = due.Add(time.Duration(float64(time.Second) / rate))
				time.Sleep(time.Until(due))
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprintf("%s-%d", toy.GetName(), i), Namespace: toy.GetNamespace(),
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(toy, toy.GroupVersionKind())},
				}, Spec: spec.Template}
				pod.Spec.NodeName = nodes.Items[written%len(nodes.Items)].Name
				written++
				if leak > 0 {
					leaked = append(leaked, bytes.Repeat([]byte{1}, leak))
					go func() { <-ctx.Done() }()
				}
				if _, err := client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
					return err
				}
			}
			if statusAfter > 0 {
				time.AfterFunc(statusAfter, func() {
					status := fmt.Appendf(nil, `{"status":{"running":%d}}`, spec.Pods)
					_, err := dyn.Resource(toys).Namespace(toy.GetNamespace()).Patch(ctx, toy.GetName(), types.MergePatchType, status,
						metav1.PatchOptions{}, "status")
					if err != nil && !apierrors.IsNotFound(err) { // the laboratory has deleted its warm-up
						failed <- err
					}
				})
			}
		}
	}
}

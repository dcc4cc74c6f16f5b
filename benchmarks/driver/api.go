package main

import (
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// An API implements as much of an API server as a node's hub needs: a node, leases, a large list of
// pods in JSON and protobuf, watches of ConfigMaps, and empty lists of everything else. Of writes,
// only leases are stored.
//
//	GET /api/v1/nodes/NAME                                          node.json
//	GET /api/v1/pods                                                pods.json, pods.protobuf
//	GET /api/v1/namespaces/bench/configmaps?watch=true&field...     an event each time one is due
type API struct {
	settings atomic.Pointer[Settings]
	node     []byte
	pods     map[string]*Pods
	watches  Watches

	lock   sync.Mutex
	leases map[string][]byte
}

// Settings can be changed while the API runs.
type Settings struct {
	Spin       float64 `json:"spin"`       // additional CPU seconds of a small response
	Generation int     `json:"generation"` // of the pods, which determines their versions
	Rate       float64 `json:"rate"`       // events per second, of all watches together
}

const jsonType, protobufType = "application/json", "application/vnd.kubernetes.protobuf"

// startAPI serves on a loopback port, which it returns; objects is a directory.
func startAPI(certificate, key, objects string) (*API, int, error) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, 0, err
	}
	api := &API{pods: map[string]*Pods{}, leases: map[string][]byte{}}
	api.settings.Store(&Settings{})
	if api.node, err = os.ReadFile(filepath.Join(objects, "node.json")); err != nil {
		return nil, 0, err
	}
	for name, media := range map[string]string{"json": jsonType, "protobuf": protobufType} {
		if api.pods[media], err = readPods(filepath.Join(objects, "pods."+name)); err != nil {
			return nil, 0, err
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, 0, err
	}
	server := http.Server{
		Handler: api,
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert,
			NextProtos: []string{"http/1.1"},
		},
		// A proxy that is killed leaves handshakes and responses unfinished, which is expected.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	go server.ServeTLS(listener, "", "")
	go api.watches.emit(api)
	return api, portOf(listener), nil
}

func (api *API) set(line []byte) any {
	settings := &Settings{}
	if err := json.Unmarshal(line, settings); err != nil {
		return map[string]string{"error": err.Error()}
	}
	api.settings.Store(settings)
	return map[string]int{"watches": api.watches.count()}
}

// ServeHTTP implements http.Handler.
func (api *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache, private")
	w.Header().Set("Content-Type", jsonType)
	path := r.URL.Path
	switch watch := r.URL.Query().Get("watch"); {
	case watch == "true" || watch == "1":
		api.watches.serve(w, r)
	case path == "/api/v1/pods":
		api.list(w, r)
	case strings.HasPrefix(path, "/api/v1/nodes/"):
		api.small(w, api.node)
	case strings.Contains(path, "/leases"):
		api.lease(w, r)
	default:
		api.other(w, r)
	}
}

func (api *API) small(w http.ResponseWriter, body []byte) {
	burn(seconds(api.settings.Load().Spin))
	w.Write(body)
}

// lease stores a created or updated lease, each time with a new version.
func (api *API) lease(w http.ResponseWriter, r *http.Request) {
	var object map[string]any
	name := r.URL.Path
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(&object); err != nil {
			refuse(w, http.StatusBadRequest, "BadRequest", err.Error())
			return
		}
	}
	if r.Method == http.MethodPost {
		metadata, _ := object["metadata"].(map[string]any)
		name = fmt.Sprintf("%s/%v", name, metadata["name"])
	}
	api.lock.Lock()
	defer api.lock.Unlock()
	if object != nil {
		if metadata, found := object["metadata"].(map[string]any); found {
			metadata["resourceVersion"] = fmt.Sprint(time.Now().UnixMicro())
		}
		api.leases[name], _ = json.Marshal(object)
	}
	body, found := api.leases[name]
	if !found {
		refuse(w, http.StatusNotFound, "NotFound", name+" is not found")
		return
	}
	if r.Method == http.MethodPost {
		w.WriteHeader(http.StatusCreated)
	}
	w.Write(body)
}

var kinds = map[string]string{
	"configmaps": "ConfigMap", "endpoints": "Endpoints", "endpointslices": "EndpointSlice",
	"namespaces": "Namespace", "nodebuckets": "NodeBucket", "nodepools": "NodePool", "nodes": "Node",
	"secrets": "Secret", "services": "Service",
}

// other responds with an empty list for known kinds, and with 404 to everything else.
func (api *API) other(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	kind, found := kinds[parts[len(parts)-1]]
	switch {
	case r.URL.Path == "/version":
		fmt.Fprint(w, `{"major":"1","minor":"34","gitVersion":"v1.34.0"}`)
	case !found || len(parts) < 3 || r.Method != http.MethodGet:
		refuse(w, http.StatusNotFound, "NotFound", r.URL.Path+" is not here")
	default:
		version := parts[1]
		if parts[0] == "apis" {
			version += "/" + parts[2]
		}
		fmt.Fprintf(w, `{"kind":"%sList","apiVersion":"%s","metadata":{"resourceVersion":"1000"},"items":[]}`,
			kind, version)
	}
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": struct{}{}, "status": "Failure",
		"message": message, "reason": reason, "code": code,
	})
}

// Pods are the encoded items of a list, each with a placeholder for its version.
type Pods struct {
	items [][]byte
	size  int // of all items in a protobuf list, with the tag and length of each
}

// versionMark is the placeholder for the version of a pod, and has the same length.
const versionMark = "@VERSION@@"

// firstVersion is the version of the first pod in generation 0; each generation has 10^5 versions.
const firstVersion = 1_000_000_000

// readPods reads a file of items, each preceded by its length in four bytes, big-endian.
func readPods(path string) (*Pods, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pods := &Pods{}
	for len(text) >= 4 {
		size := int(binary.BigEndian.Uint32(text))
		item := text[4 : 4+size]
		if strings.Count(string(item), versionMark) != 1 {
			return nil, fmt.Errorf("%s: item %d has no place for a version", path, len(pods.items))
		}
		pods.items = append(pods.items, item)
		pods.size += size + len(field(2, size))
		text = text[4+size:]
	}
	return pods, nil
}

// The cost of encoding a pod in an API server: 5,000 take 0.55 s as JSON (kube-apiserver 1.34 on two
// cores), including TLS and HTTP. Protobuf is about eight times as fast.
const jsonCost, protobufCost = 80 * time.Microsecond, 10 * time.Microsecond

// list streams the pods one by one, as API servers do since 1.33 (KEP-5116).
func (api *API) list(w http.ResponseWriter, r *http.Request) {
	media, cost := jsonType, jsonCost
	if strings.HasPrefix(r.Header.Get("Accept"), protobufType) {
		media, cost = protobufType, protobufCost
	}
	pods := api.pods[media]
	version := firstVersion + api.settings.Load().Generation*100_000
	last := fmt.Sprint(version + len(pods.items))
	w.Header().Set("Content-Type", media)
	if media == protobufType {
		w.Write(protobufHead(last, pods.size))
	} else {
		fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%s"},"items":[`, last)
	}
	var buffer []byte
	for i, item := range pods.items {
		burn(cost)
		buffer = buffer[:0]
		if media == protobufType {
			buffer = append(buffer, field(2, len(item))...)
		} else if i > 0 {
			buffer = append(buffer, ',')
		}
		at := len(buffer) + strings.Index(string(item), versionMark)
		buffer = append(buffer, item...)
		copy(buffer[at:], fmt.Sprint(version+i))
		if _, err := w.Write(buffer); err != nil {
			return
		}
	}
	if media == protobufType {
		w.Write([]byte("\x1a\x00\x22\x00")) // empty contentEncoding and contentType
	} else {
		fmt.Fprint(w, "]}\n")
	}
}

// protobufHead returns the part of a list before its items: runtime.Unknown with the type, and the
// start of a PodList with its metadata (generated.proto of k8s.io/apimachinery).
func protobufHead(version string, items int) []byte {
	kind := append(text(1, "v1"), text(2, "PodList")...)
	metadata := append(append(text(1, ""), text(2, version)...), text(3, "")...)
	inner := append(field(1, len(metadata)), metadata...)
	head := append([]byte("k8s\x00"), append(field(1, len(kind)), kind...)...)
	return append(append(head, field(2, len(inner)+items)...), inner...)
}

func field(number, size int) []byte {
	return binary.AppendUvarint([]byte{byte(number<<3 | 2)}, uint64(size))
}

func text(number int, value string) []byte { return append(field(number, len(value)), value...) }

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.Transformation;

/**
 * Reads records, one in each line, as a converter would give them to a transform, applies the
 * transforms that the line asks for, and writes down what came out: null if nothing did. Texts and
 * bytes are written as they are (bytes as {"bytes": base64}), structs as JSON.
 */
public class ApplyTransform {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        JsonConverter keys = converter(true);
        JsonConverter values = converter(false);
        Map<String, Transformation<SourceRecord>> made = new HashMap<>();
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = JSON.readTree(line);
            String name = asked.get("transform").asText();
            String wanted = name + asked.get("config");
            if (!made.containsKey(wanted)) {
                made.put(wanted, transform(name, asked.get("config")));
            }
            String topic = asked.get("topic").asText();
            SchemaAndValue key = keys.toConnectData(topic, bytes(asked.get("key")));
            SchemaAndValue value = values.toConnectData(topic, bytes(asked.get("value")));
            SourceRecord record =
                    new SourceRecord(
                            Map.of(), Map.of(), topic, null, key.schema(), key.value(),
                            value.schema(), value.value());
            SourceRecord result = made.get(wanted).apply(record);
            System.out.println(result == null ? "null" : JSON.writeValueAsString(asJson(result)));
        }
    }

    private static JsonConverter converter(boolean isKey) {
        JsonConverter converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", "true"), isKey);
        return converter;
    }

    @SuppressWarnings("unchecked")
    private static Transformation<SourceRecord> transform(String name, JsonNode config)
            throws Exception {
        Transformation<SourceRecord> transform =
                (Transformation<SourceRecord>)
                        Class.forName(name).getDeclaredConstructor().newInstance();
        transform.configure(JSON.convertValue(config, Map.class));
        return transform;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : text.asText().getBytes(StandardCharsets.UTF_8);
    }

    private static ObjectNode asJson(SourceRecord record) throws Exception {
        ObjectNode json = JSON.createObjectNode();
        json.put("topic", record.topic());
        json.set("key", plain(record.key()));
        json.set("value", plain(record.value()));
        ArrayNode headers = json.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(plain(header.value()));
        }
        return json;
    }

    private static JsonNode plain(Object value) throws Exception {
        if (value instanceof Struct struct) {
            byte[] text = converterWithout().fromConnectData("", struct.schema(), struct);
            return JSON.readTree(text);
        }
        if (value instanceof byte[] || value instanceof ByteBuffer) {
            byte[] data = value instanceof byte[] all ? all : ((ByteBuffer) value).array();
            return JSON.createObjectNode().put("bytes", Base64.getEncoder().encodeToString(data));
        }
        return JSON.valueToTree(value);
    }

    private static JsonConverter converterWithout() {
        JsonConverter converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", "false"), false);
        return converter;
    }
}

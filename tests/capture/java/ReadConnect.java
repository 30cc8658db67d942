import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.connect.data.ConnectSchema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;

/** Reads every line as Kafka Connect would, and writes down again what it understood. */
public class ReadConnect {
    public static void main(String[] arguments) throws Exception {
        JsonConverter converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", "true"), false);
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            SchemaAndValue read =
                    converter.toConnectData("topic", line.getBytes(StandardCharsets.UTF_8));
            // toConnectData takes a null for a required field; whatever stores the record will not.
            ConnectSchema.validateValue(read.schema(), read.value());
            byte[] again = converter.fromConnectData("topic", read.schema(), read.value());
            System.out.println(new String(again, StandardCharsets.UTF_8));
        }
    }
}
